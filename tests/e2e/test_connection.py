"""Signing in as somebody with a browser does: over HTTP, with a real provider and real crashes."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_scene import FAST, on_a_socket
from msgspec.structs import replace
from oauth_provider import PLAIN, SECRET, Remote, provider_process
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sign_in_scene import KEY, Hub, required

from outlast import Outlast, Session, Telemetry
from outlast.cli.terminal.transcript import Transcript
from outlast.clock import Clock
from outlast.server import Principal, ServerSettings
from outlast.server.key import add_key, mint

ADA: dict[str, Any] = {"principal": "ada"}


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    with provider_process() as found:
        yield found


class Office:
    """An app that works, its server on a socket, and who uses it with a browser."""

    def __init__(self, app: Outlast, hub: Hub, browser: httpx.AsyncClient) -> None:
        self.app = app
        self.hub = hub
        self.browser = browser

    async def visit(self, session: Session[Any], error: str = "", number: int = 1) -> str:
        """Say yes or no at the provider; return the address to come back to."""
        asked = await required(session, number)
        return await self.hub.remote.visit(asked.data["url"], error)

    async def come_back(self, address: str) -> tuple[int, str]:
        """Return the status of the page that is shown, and its title."""
        page = await self.browser.get(address)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "script" not in page.text
        return page.status_code, page.text.partition("<h1>")[2].partition("</h1>")[0]


@asynccontextmanager
async def office(
    hub: Hub, server: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Office]:
    given = {"store": "memory://", "worker": FAST, **hub.app, **options}
    settings = ServerSettings(port=0, **(server or {}))
    async with (
        Outlast([hub.agent()], **given) as app,
        on_a_socket(app, settings) as (host, port),
        httpx.AsyncClient(verify=PLAIN) as browser,
    ):
        app.public_url = f"http://{host}:{port}"
        yield Office(app, hub, browser)


async def test_somebody_signs_in_with_a_browser_and_the_task_goes_on(remote: Remote) -> None:
    async with office(Hub(remote), {"require_key": True}) as desk:
        session = await desk.app.start("a", "go", **ADA)
        back = await desk.visit(session)
        page = await desk.browser.get(back)

        assert (page.status_code, "You can close this page." in page.text) == (200, True)
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert page.headers["referrer-policy"] == "no-referrer"
        assert page.headers["cache-control"] == "no-store"
        assert (await session.wait()).output == "done"
        assert await desk.come_back(back) == (409, "Already used")


async def test_a_reader_that_may_not_send_is_not_shown_where_a_sign_in_can_be_ended(
    remote: Remote,
) -> None:
    async with office(Hub(remote), {"require_key": True, "rate": 0}) as desk:
        session = await desk.app.start("a", "go", **ADA)
        await desk.visit(session)
        addresses = {}
        for scopes in (("read",), ("read", "send"), ("read", "approve", "internals")):
            text, key = mint(desk.app.clock, tenant="default", name="k", scopes=scopes)
            await add_key(desk.app.store, key)
            header = {"Authorization": f"Bearer {text}"}
            for path in (
                f"sessions/{session.id}/stream?follow=false",
                f"sessions/{session.id}/stream?follow=until_rest",
                f"streams/sessions/{session.id}?offset=-1",
                f"streams/sessions/{session.id}?offset=-1&live=long-poll",
            ):
                page = await desk.browser.get(f"{desk.app.public_url}/v1/{path}", headers=header)
                assert (page.status_code, "authorization.required" in page.text) == (200, True)
                addresses[scopes, path] = "state=" in page.text

        assert {scopes for (scopes, _), shown in addresses.items() if shown} == {("read", "send")}
        assert sum(addresses.values()) == 4


async def test_every_way_back_has_a_page_of_its_own(remote: Remote) -> None:
    async with office(Hub(remote)) as desk:
        session = await desk.app.start("a", "go", **ADA)
        back = await desk.visit(session)
        pages = {
            back.replace("state=", "state=x"): (404, "Nothing here"),
            back.replace("/hub/", "/other/"): (404, "Nothing here"),
            back.partition("?")[0]: (404, "Nothing here"),
            back.replace("iss=", "iss=https%3A%2F%2Fevil.example"): (400, "Not signed in"),
            back.replace("code=", "code=x"): (503, "Not signed in yet"),
        }
        for address, page in pages.items():
            assert await desk.come_back(address) == page
        for method in ("HEAD", "POST", "PUT", "DELETE"):
            assert (await desk.browser.request(method, back)).status_code == 405

        denied = await desk.visit(session, "access_denied")
        assert await desk.come_back(denied) == (200, "Not signed in")
        assert await desk.come_back(back) == (409, "Already used")
        assert (await session.wait()).output == "done"


async def test_a_link_that_nobody_waits_behind_says_so(remote: Remote) -> None:
    async with office(Hub(remote, sign_in_timeout=timedelta(milliseconds=1))) as desk:
        session = await desk.app.start("a", "go", **ADA)
        await session.wait()
        assert await desk.come_back(await desk.visit(session)) == (410, "Too late")
    async with office(Hub(remote)) as desk:
        session = await desk.app.start("a", "go", **ADA)
        back = await desk.visit(session)
        await desk.app.erase(session.id)
        assert await desk.come_back(back) == (404, "Nothing here")


async def test_a_browser_that_the_app_knows_has_to_be_whose_sign_in_it_is(remote: Remote) -> None:
    def who(request: Any) -> Principal | None:
        name = request.cookies.get("who")
        return Principal("default", name, frozenset({"read"})) if name else None

    async with office(Hub(remote), {"authenticate": who}) as desk:
        session = await desk.app.start("a", "go", **ADA)
        back = await desk.visit(session)
        desk.browser.cookies.set("who", "eve")
        assert await desk.come_back(back) == (403, "Not yours")
        desk.browser.cookies.clear()
        assert await desk.come_back(back) == (401, "Who are you?")
        desk.browser.cookies.set("who", "ada")
        assert await desk.come_back(back) == (200, "Signed in")
        assert (await session.wait()).output == "done"


async def test_anybody_signs_in_for_the_app_itself_where_people_are_known(remote: Remote) -> None:
    async with office(Hub(remote, owner="app"), {"authenticate": lambda _: None}) as desk:
        session = await desk.app.start("a", "go")

        assert await desk.come_back(await desk.visit(session)) == (200, "Signed in")
        assert (await session.wait()).output == "done"


async def test_a_chat_shows_where_to_sign_in(
    remote: Remote, capsys: pytest.CaptureFixture[str]
) -> None:
    async with office(Hub(remote)) as desk:
        session = await desk.app.start("a", "go", **ADA)
        asked = await required(session)

        Transcript(as_json=False).show(asked)

        assert f"sign in to hub: {asked.data['url']}" in capsys.readouterr().out.replace("\n", "")


# Secrets


class Lines(logging.Handler):
    """All log lines, whole."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{self.format(record)} {record.__dict__!r}")


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


class Ahead(Clock):
    """A clock that a test can put forward."""

    ahead = 0

    def now(self) -> int:
        return super().now() + self.ahead


def bytes_in(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in directory.rglob("*") if file.is_file())


async def test_no_secret_is_in_the_log_the_stream_a_trace_a_log_line_or_the_file(
    remote: Remote, tmp_path: Path, lines: Lines
) -> None:
    spans = InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    hub, clock = Hub(remote), Ahead()
    options: dict[str, Any] = {
        "store": f"sqlite:///{tmp_path / 'outlast.db'}",
        "clock": clock,
        "worker": replace(FAST, lease=2.0),  # soon renewed, where the clock jumps
        "telemetry": Telemetry(tracer_provider=tracers, content=True),
    }
    async with office(hub, **options) as desk:
        shown = []
        for error in ("access_denied", ""):
            session = await desk.app.start("a", "go", **ADA)
            back = await desk.visit(session, error)
            shown.append((await desk.browser.get(back.replace("code=", "code=x"))).text)
            shown.append((await desk.browser.get(back)).text)
            await session.wait()
        clock.ahead = 3_700_000
        for trouble in ("", "invalid_client"):
            await remote.say(error=trouble)
            session = await desk.app.start("a", "go", **ADA)
            await session.wait()
            clock.ahead += 3_700_000
        assert len(set(hub.tokens)) == 2

        for info in await desk.app.sessions():
            url = f"{desk.app.public_url}/v1/sessions/{info.session_id}"
            for path in ("", "/stream?follow=false"):
                shown.append((await desk.browser.get(url + path)).text)
            page = await desk.app.store.log.read(info.session_id, 0)
            shown += [repr(entry) for entry in page.entries]
            shown += map(
                repr, await desk.app.store.listing.requests(info.session_id, open_only=False)
            )
            shown.append(repr(await (await desk.app.session(info.session_id)).explain()))
        shown += [repr(each) for each in (hub.connection, desk.app, vars(desk.app))]
        stored = bytes_in(tmp_path)

    # Those of the test's own client, which looks things up for it and says what it did.
    ours = [line for line in lines.lines if "httpcore" not in line and "httpx" not in line]
    told = "\n".join([*shown, *ours, *(span.to_json() for span in spans.get_finished_spans())])
    given = (await remote.say())["given"]
    assert set(hub.tokens) < set(given)
    for secret in (*given, SECRET, KEY):
        assert secret not in told
        assert secret.encode() not in stored
    assert "authorization.completed" in told


# Crashes


class Later(Clock):
    """The time at which what a dead server held is free again."""

    def now(self) -> int:
        return super().now() + 60_000


async def test_a_server_that_is_killed_while_it_takes_somebody_in_costs_one_more_visit(
    remote: Remote, tmp_path: Path
) -> None:
    hub, store = Hub(remote), f"sqlite:///{tmp_path / 'outlast.db'}"
    script = str(Path(__file__).with_name("sign_in_process.py"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, script, store, remote.url.rpartition(":")[2]),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    async with (
        Outlast([hub.agent()], store=store, worker=None, **hub.app) as app,
        httpx.AsyncClient(verify=PLAIN, timeout=60) as browser,
    ):
        session = await app.start("a", "go", **ADA)
        asked = await required(session)
        _, _, query = (await remote.visit(asked.data["url"])).partition("?")
        await remote.say(kills=process.pid)
        with pytest.raises(httpx.TransportError):
            await browser.get(f"http://127.0.0.1:{port}/v1/connections/hub/callback?{query}")
    assert await process.wait() == -signal.SIGKILL

    async with office(hub, store=store, clock=Later()) as desk:
        session = await desk.app.session(session.id)
        assert (await session.wait()).status == "waiting"
        # The code was good once, and what it gave died with the server; the link is still good.
        here = f"{desk.app.public_url}/v1/connections/hub/callback"
        assert await desk.come_back(f"{here}?{query}") == (503, "Not signed in yet")
        _, _, query = (await remote.visit(asked.data["url"])).partition("?")
        assert await desk.come_back(f"{here}?{query}") == (200, "Signed in")

        assert (await session.wait()).output == "done"
        types = [event.type async for event in session.events(follow=False)]
        assert types.count("message.completed") == 2
        assert types.count("authorization.required") == 1
