"""The server inside another app, behind a prefix, and by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from http_scene import FAST, Caller, teller

from outlast import Outlast
from outlast.server import ServerSettings
from outlast.server.serve import UvicornServer, open_socket


def app_of(**given: Any) -> Outlast:
    return Outlast([teller], store="memory://", worker=FAST, **given)


@asynccontextmanager
async def calling(outer: FastAPI, root: str = "") -> AsyncIterator[Caller]:
    """Run an app with its lifespan, as a server does, and call it."""
    transport = httpx.ASGITransport(outer, root_path=root)
    async with (
        outer.router.lifespan_context(outer),
        Caller(transport=transport, base_url="http://127.0.0.1:8000") as caller,
    ):
        yield caller


async def test_below_a_prefix_every_address_that_is_told_leads_somewhere() -> None:
    app = app_of()
    outer = FastAPI(lifespan=app.lifespan)
    outer.mount("/agents-of-ours", app.asgi())
    async with calling(outer) as caller:
        body = {"agent": "teller", "message": "hello"}

        started = await caller.post("/agents-of-ours/v1/sessions", json=body)
        prompt = {"message": "hello"}
        url = "/agents-of-ours/v1/agents/teller/a%20b"
        prompted = (await caller.post(url, json=prompt)).json()

        session = started.json()["session_id"]
        assert started.headers["location"] == f"/agents-of-ours/v1/sessions/{session}"
        assert (await caller.get(started.headers["location"])).status_code == 200
        read = await caller.get(started.json()["stream_url"], params={"follow": "false"})
        assert read.status_code == 200
        assert prompted["stream_url"] == url
        assert (await caller.get(url)).status_code == 200
        assert (await caller.get("/v1/sessions")).status_code == 404
        wrong = await caller.put("/agents-of-ours/v1/sessions")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST")


async def test_mounted_it_lets_in_no_more_than_by_itself() -> None:
    app = app_of()
    outer = FastAPI(lifespan=app.lifespan)
    outer.mount("/v1/healthz", app.asgi(ServerSettings(require_key=True)))
    async with calling(outer) as caller:
        assert (await caller.get("/v1/healthz/v1/sessions")).status_code == 401
        assert (await caller.get("/v1/healthz/v1/healthz")).status_code == 200


async def test_behind_a_proxy_that_takes_a_prefix_away_addresses_have_it() -> None:
    async with calling(app_of().asgi(), root="/api") as caller:
        body = {"agent": "teller", "message": "hello"}

        started = await caller.ask("POST", "/sessions", 202, json=body)

        assert started["stream_url"].startswith("/api/v1/sessions/")


async def test_what_is_known_to_be_reached_from_outside_goes_before_the_prefix() -> None:
    async with calling(app_of(public_url="https://a.example/x").asgi(), root="/api") as caller:
        started = await caller.start()

        assert started["stream_url"].startswith("https://a.example/x/v1/sessions/")


async def test_by_itself_it_opens_the_app_and_closes_it_again() -> None:
    app = app_of()
    async with calling(app.asgi()) as caller:
        assert app.is_open
        await caller.start()
    assert not app.is_open


async def test_an_app_that_is_open_already_stays_open() -> None:
    async with app_of() as app:
        async with calling(app.asgi()) as caller:
            await caller.start()
        assert app.is_open


async def test_a_server_that_waits_no_longer_for_streams_cuts_them_and_logs_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, ready = app_of(), asyncio.Event()
    outer, api = FastAPI(lifespan=app.lifespan), app.asgi()
    outer.mount("/agents", api)
    config = uvicorn.Config(outer, lifespan="on", log_config=None, timeout_graceful_shutdown=0)
    server = UvicornServer(config, ready.set)
    with open_socket(ServerSettings(port=0)) as to:
        serving = asyncio.create_task(server.serve([to]))
        await ready.wait()
        host, port = to.getsockname()[:2]
        async with Caller(base_url=f"http://{host}:{port}/agents", timeout=20) as caller:
            session = (await caller.start())["session_id"]
            poll = f"/v1/streams/sessions/{session}?offset=now&live=long-poll"
            polled = asyncio.create_task(caller.get(poll))
            async with caller.stream("GET", f"/v1/sessions/{session}/stream") as stream:
                while api.state.backend.feeds.readers < 2:  # noqa: ASYNC110 - a request has no event
                    await asyncio.sleep(0.01)

                server.should_exit = True

                with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                    await stream.aread()
            assert (await polled).status_code == 503
        await serving
    assert not app.is_open
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize("path", ["/readyz", "/v1/sessions"])
async def test_an_app_that_nobody_opened_is_not_ready(path: str, postgres_server: str) -> None:
    app = Outlast([teller], store=postgres_server, worker=None)
    transport = httpx.ASGITransport(app.asgi())
    async with Caller(transport=transport, base_url="http://127.0.0.1:8000") as caller:
        assert (await caller.get(path)).status_code == 503
