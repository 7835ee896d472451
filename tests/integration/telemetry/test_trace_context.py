"""The trace of whoever sent a message is linked with the trace of the turn that it started."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from scene import FAST, agent, log_of, running

from outlast import Agent, Outlast, Telemetry, tool
from outlast.client.connection import headers_of
from outlast.core import record as r
from outlast.integration.telemetry.trace import trace_of
from outlast.net.trace_context import HEADER, TraceParent, asked_by, current, parse
from outlast.testing.scripted import call, say

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


class Told:
    """An SDK of a test's own."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = Telemetry(tracer_provider=self.tracers)

    def asking(self) -> Any:
        """Open a span as a web framework does for a request."""
        return self.tracers.get_tracer("web").start_as_current_span("POST /refunds")

    def turns(self) -> list[ReadableSpan]:
        return [s for s in self._spans.get_finished_spans() if s.name.startswith("invoke_agent")]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path}/traces.db"


def greeter(**options: Any) -> Agent[Any, Any]:
    return agent(lambda _: say("hello"), **options)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def ids(span: Any) -> tuple[int, int]:
    return span.get_span_context().trace_id, span.get_span_context().span_id


async def test_a_turn_is_linked_with_the_span_that_sent_its_message(told: Told) -> None:
    async with running(greeter(), telemetry=told.telemetry) as app:
        with told.asking() as first:
            session = await app.start("a", "go")
        await session.wait()
        with told.asking() as second:
            receipt = await session.send("again")
        await receipt.result()
        await (await session.send("by itself")).result()

    assert [links(span) for span in told.turns()] == [[ids(first)], [ids(second)], []]
    [turn, *_] = told.turns()
    assert turn.context is not None
    assert turn.context.trace_id == trace_of(session.id, "t1").trace_id  # a trace of its own


async def test_the_link_is_there_whoever_ends_the_turn(told: Told, database: str) -> None:
    entered = asyncio.Event()

    @tool(readonly=True)
    async def gate() -> str:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()
        return "through"

    def walker() -> Agent[Any, Any]:
        return agent([call("gate"), say("done")], tools=[gate])

    async with Outlast([walker()], store=database, worker=None) as app:
        with told.asking() as span:
            session = (await app.start("a", "go", dispatch_id="once")).id
        with told.asking():  # another span, and no conflict
            assert (await app.start("a", "go", dispatch_id="once")).id == session
    options: dict[str, Any] = {"store": database, "telemetry": told.telemetry, "worker": FAST}
    async with Outlast([walker()], **options):
        await entered.wait()
    async with Outlast([walker()], **options) as app:
        handle = await app.session(session)
        assert (await handle.wait()).output == "done"
        shown = [event.data for event in await log_of(handle)]

    [turn] = told.turns()
    assert links(turn) == [ids(span)]
    assert not [data for data in shown if HEADER in data]  # it is no event's


async def test_an_http_request_is_linked_by_its_header_and_hostile_ones_are_ignored(
    told: Told,
) -> None:
    async with running(greeter(), telemetry=told.telemetry) as app:
        transport = httpx.ASGITransport(app.asgi(), client=("127.0.0.1", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as caller:
            for given in ([PARENT], ["nonsense" * 1000], [PARENT, PARENT], []):
                headers = [(HEADER, value) for value in given]
                body = {"agent": "a", "message": "go"}
                answer = await caller.post("/v1/sessions", json=body, headers=headers)
                assert answer.status_code == 202
                await (await app.session(answer.json()["session_id"])).wait()

    expected = [(int(TRACE, 16), int(SPAN, 16))]
    assert [links(span) for span in told.turns()] == [expected, [], [], []]


async def test_the_client_sends_the_current_span_along(told: Told) -> None:
    assert headers_of(None) == {}
    with told.asking() as span:
        sent = headers_of(b"{}")[HEADER]
    flags = int(span.get_span_context().trace_flags)
    assert parse(sent) == TraceParent(*ids(span), flags=flags)


async def test_without_telemetry_no_trace_is_kept(told: Told) -> None:
    async with running(greeter(), telemetry=None, settings=replace(FAST)) as app:
        with told.asking():
            session = await app.start("a", "go")
        await session.wait()
        page = await app.store.log.read(session.id, 0)
        queued = [e.record for e in page.entries if isinstance(e.record, r.DeliveryQueued)]
        assert [record.traceparent for record in queued] == [""]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (PARENT, True),
        (f"01-{TRACE}-{SPAN}-00-more", True),
        (f"00-{TRACE}-{SPAN}-00-more", False),
        (f"ff-{TRACE}-{SPAN}-00", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (PARENT.upper(), False),
        (f" {PARENT}", False),
        (f"{PARENT}\n", False),
        ("01-" + TRACE + "-" + SPAN + "-00-" + "x" * 1000, False),
        ("", False),
    ],
)
def test_a_traceparent_is_as_the_w3c_has_it(text: str, taken: bool) -> None:
    assert (parse(text) is not None) is taken
    with asked_by([text]):
        assert bool(current()) is taken
        assert len(current()) in (0, 55)
    assert current() == ""
    assert not trace.get_current_span().get_span_context().is_valid
