"""A run's URL is its stream, by the Durable Streams protocol: what Flue's users read, by tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_scene import FAST, on_a_socket
from stream_troupe import read_officially
from test_http_stream_durable import NO_OFFSETS, marks

from outlast import Outlast, Run, WorkflowContext, workflow
from outlast.core.event import encode
from outlast.server import ServerSettings

QUICK = ServerSettings(port=0, heartbeat=0.05, long_poll=0.05)


async def double(number: int) -> int:
    return 2 * number


@workflow
async def batch(ctx: WorkflowContext, pages: int) -> str:
    for number in range(pages):
        await ctx.step(str, number, name=f"page {number}")
        ctx.emit("page", {"number": number})
    await ctx.wait_event("go on", timeout=timedelta(days=1))
    await ctx.map(double, range(3))
    return "done"


class Stream:
    """A run and its URL on a server."""

    def __init__(self, app: Outlast, http: httpx.AsyncClient, run: Run[Any]) -> None:
        self.app = app
        self.http = http
        self.run = run
        self.path = f"/runs/{run.id}"

    async def get(self, **query: Any) -> httpx.Response:
        return await self.http.get(self.path, params=query)

    async def parked(self) -> None:
        async for event in self.run.events():
            if event.type == "session.waiting":
                return

    async def events(self) -> list[Any]:
        return [json.loads(encode(event)) async for event in self.run.events(follow=False)]

    async def end(self) -> None:
        await self.run.send_event("go on")
        assert (await self.run.wait()).unwrap() == "done"


@asynccontextmanager
async def served(store: str, run_id: str = "", **given: Any) -> AsyncIterator[Stream]:
    async with (
        Outlast([batch], store=store, worker=FAST) as app,
        on_a_socket(app, given.get("settings")) as (host, port),
        httpx.AsyncClient(base_url=f"http://{host}:{port}/v1", timeout=60) as http,
    ):
        run = await (app.get_run(run_id) if run_id else app.run(batch, 4))
        yield Stream(app, http, run)


async def read_on(stream: Stream, offset: str) -> tuple[list[Any], httpx.Response]:
    """Read page by page up to the present end."""
    seen: list[Any] = []
    while True:
        page = await stream.get(offset=offset)
        seen += page.json()
        offset = page.headers["stream-next-offset"]
        if marks(page)[0]:
            return seen, page


async def test_the_stream_of_a_run_is_at_one_url_through_a_restart_and_its_end(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with served(store) as stream:
        await stream.parked()
        begun, last = await read_on(stream, "-1")
        run_id, offset = stream.run.id, last.headers["stream-next-offset"]
        assert marks(last) == (True, False)
    async with served(store, run_id) as stream:
        await stream.end()
        rest, last = await read_on(stream, offset)
        whole, again = await read_on(stream, "-1")

        assert stream.path == f"/runs/{run_id}"
        assert marks(last) == marks(again) == (True, True)
        assert [*begun, *rest] == whole == await stream.events()
        # What has ended stays as it ended: nothing is added to its stream, and nothing revives it.
        await stream.http.post(f"{stream.path}/events", json={"name": "go on"})
        await stream.http.post(f"{stream.path}/cancel", json={})
        assert (await read_on(stream, "-1"))[0] == whole
        assert (await stream.get(meta="")).json()["status"] == "completed"


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_the_protocols_own_client_reads_a_run_to_its_end(live: str) -> None:
    async with served("memory://") as stream:
        reading = asyncio.create_task(
            read_officially(f"{stream.http.base_url}{stream.path.removeprefix('/')}", live)
        )
        await stream.parked()
        await stream.end()

        assert await reading == await stream.events()


async def test_a_page_that_a_reader_of_a_run_has_is_not_sent_again() -> None:
    async with served("memory://") as stream:
        await stream.parked()
        first = await stream.get()
        again = await stream.http.get(stream.path, headers={"If-None-Match": first.headers["etag"]})
        await stream.end()
        grown = await stream.http.get(stream.path, headers={"If-None-Match": first.headers["etag"]})

        assert (again.status_code, again.content) == (304, b"")
        assert first.headers["cache-control"] == "private, no-cache"
        assert grown.status_code == 200
        assert grown.headers["stream-closed"] == "true"


async def test_the_head_the_end_and_a_poll_of_a_run_tell_where_it_stands() -> None:
    async with served("memory://", settings=QUICK) as stream:
        await stream.parked()
        head = await stream.http.head(stream.path)
        now = await stream.get(offset="now")
        polled = await stream.get(offset="now", live="long-poll")

        end = head.headers["stream-next-offset"]
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == "application/json"
        assert "stream-closed" not in head.headers
        assert (now.json(), marks(now), now.headers["stream-next-offset"]) == (
            [],
            (True, False),
            end,
        )
        assert (polled.status_code, polled.headers["stream-next-offset"]) == (204, end)
        await stream.end()
        head = await stream.http.head(stream.path)
        assert head.headers["stream-closed"] == "true"
        polled = await stream.get(offset=head.headers["stream-next-offset"], live="long-poll")
        assert (polled.status_code, marks(polled)) == (204, (True, True))


async def test_what_is_no_offset_of_a_run_is_refused_and_nothing_writes_to_its_stream() -> None:
    async with served("memory://") as stream:
        await stream.parked()
        before = await stream.events()
        for query in NO_OFFSETS:
            refused = await stream.http.get(f"{stream.path}?{query}")
            assert refused.status_code == 400, query
            assert refused.json()["error"]["code"] == "INVALID_OFFSET"
        for method in ("PUT", "POST", "DELETE", "PATCH"):
            refused = await stream.http.request(method, stream.path, json=[{"type": "forged"}])
            assert refused.status_code == 405, method
        assert (await stream.http.head("/runs/run_none")).status_code == 404
        assert await stream.events() == before
