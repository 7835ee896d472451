"""The same code does the same here and over the wire."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from client_scene import AGENTS, Plan, far_away, planner
from http_scene import FAST, teller
from opentelemetry.sdk.trace import TracerProvider
from webhook_receiver import Receiver, Reply

from outlast import Event, Image, Key, Outlast, QueueEntry, Receipt, Token
from outlast.client import Client, RemoteSession
from outlast.core.breaker import Provider, after_failure
from outlast.core.instant import milliseconds_at
from outlast.core.record import DeliveryQueued, Failure
from outlast.core.result import ModelFailed
from outlast.errors import CursorAhead, InvalidInput, OutlastError, UnknownLane, UnknownQueue
from outlast.log.breaker import document_of
from outlast.net.trace_context import parse
from outlast.server import ServerSettings
from outlast.server.model.request import A_REQUEST
from outlast.server.model.session import AN_ITEM
from outlast.session import Session

Place = Any
"""A Outlast or a Client: what stands below does not care which."""

IDS = re.compile(r"(?:ses|run|dlv|req|dsp)_\w+")
IN_TIME = datetime(2099, 1, 31, 12, tzinfo=UTC)
TAGS = {"customer": "42", "urgency": "50%_of=it"}
PLAN: Any = {"output_type": Plan}
INSTANTS = ("at", "since", "spent", "expires_at")
OF_RUNS = ("created_at", "started_at", "updated_at", "ended_at", "tenant")
UNLIKE = (*INSTANTS, *OF_RUNS, "cursor", "digest", "principal", "worker")
"""Instants and spans; what is made of ids; and who a caller is."""


class Names:
    """Gives every id of a run the same name as in another run."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def plain(self, value: Any) -> Any:
        """Return a value as plain data, without what differs from run to run."""
        if isinstance(value, msgspec.Struct):
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            return {"": type(value).__name__, **self.plain(fields)}
        if isinstance(value, dict):
            return {name: self.plain(each) for name, each in value.items() if name not in UNLIKE}
        if isinstance(value, list | tuple):
            return [self.plain(each) for each in value]
        if isinstance(value, str):
            return IDS.sub(lambda found: self._name(found[0]), value)
        return value

    def _name(self, found: str) -> str:
        return self._known.setdefault(found, f"{found[:3]}{len(self._known)}")


async def talk(place: Place, seen: list[Any]) -> None:
    """Start, read, answer, send, cancel, fail, retry, list and end, and note all that is given."""
    session = await place.start("teller", "refund", dispatch_id="one")
    again = await place.start("teller", "refund", dispatch_id="one")
    seen += [session.receipt.duplicate, again.receipt.duplicate, again.id == session.id]
    seen += [event async for event in session.events()]
    result = await session.wait()
    seen += [result, *await session.requests(), *await place.requests(agent="teller")]

    [request] = result.requests
    receipt = await session.answer(request, "approve", args={"order": 17, "cents": 1})
    assert isinstance(receipt, Receipt)
    seen.append(await receipt.result())

    parts = ["more: ", Image(b"\0\xff", media_type="image/png")]
    sent = await session.send(parts, deadline=IN_TIME)
    seen += [sent.lane, await sent.result(), await session.result_of(sent.delivery_id)]

    hanging = await session.send("hang")
    queued = hanging
    async for event in session.events(after=hanging.offset):
        if event.type == "tool.started":
            queued = await session.send("queued")
            await session.cancel("enough", turn=event.turn)
    seen += [queued.position, await hanging.result(), await queued.result()]

    aside = await session.send("hang", lane="aside")
    async for event in session.events(after=aside.offset):
        if event.type == "tool.started":
            await session.cancel("enough", lane="aside")
    seen.append(await aside.result())

    seen.append(await (await session.send("fail", dispatch_id="two")).result())
    seen.append(await (await session.retry()).result())
    again = await session.send("fail", dispatch_id="two", retry_failed=True)
    seen += [again.duplicate, await again.result()]
    seen += [await place.bulk.retry(code=code, dry_run=True) for code in ("SCRIPTED", "OTHER")]
    seen.append(await place.bulk.retry(queue="other", dry_run=True))
    seen += list(await place.sessions(queue="other"))
    seen += [await place.bulk.retry(agent="teller"), await session.wait()]
    seen.append(await place.bulk.cancel(agent="teller", waiting="request"))
    seen += await session.history()
    seen += [event async for event in session.events(follow=False)]
    seen += [event async for event in session.events(receipt.offset, internals=True)]

    found = await place.session(session.id)
    token = await found.continuation_token()
    seen.append(await (await place.send(Token(token), "by token")).result())
    prompted = await place.send(Key("teller", "a/../b?"), "by key", tags=TAGS)
    seen.append(await prompted.result())
    again = await place.send(Key("teller", "a/../b?"), "again")
    seen += [again.session_id == prompted.session_id, await again.result()]

    await session.end("good bye")
    seen += [await session.wait(), (await session.info()).status]
    tagged = await place.start("teller", "tagged", tags={"customer": "42"})
    seen += [await tagged.wait(), (await tagged.info()).tags, (await tagged.snapshot()).tags]
    for tags in ({"customer": "42"}, TAGS, {**TAGS, "urgency": "low"}, {}):
        seen.append([info.tags for info in await place.sessions(tags=tags)])
    for wrong in ({"a b": "c"}, {"customer": 42}, ["customer"]):
        for attempt in (place.start("teller", "hi", tags=wrong), place.sessions(tags=wrong)):
            with pytest.raises(InvalidInput) as refused:
                await attempt
            seen.append(str(refused.value))
    listed = await place.sessions(agent="teller", limit=2)
    seen += [[(info.session_id, info.agent, info.status, info.end) for info in listed]]
    await place.erase(session.id)
    seen.append(len(await place.sessions()))


async def test_the_same_code_sees_the_same_here_and_over_the_wire() -> None:
    near: list[Any] = []
    far: list[Any] = []
    async with Outlast([teller], store="memory://", worker=FAST) as app:
        await talk(app, near)
    async with far_away() as there:
        await talk(there.client, far)

    names, same = Names(), Names()
    assert [same.plain(each) for each in far] == [names.plain(each) for each in near]
    assert [type(each) for each in far] == [type(each) for each in near]
    assert sum(isinstance(each, Event) for each in far) > 100


async def test_the_span_in_which_something_is_sent_goes_over_the_wire() -> None:
    async with far_away() as far:
        with TracerProvider().get_tracer("web").start_as_current_span("POST /refunds") as span:
            session = await far.client.start("teller", "hello")
        page = await far.app.store.log.read(session.id, 0)

    [queued] = [e.record for e in page.entries if isinstance(e.record, DeliveryQueued)]
    sent = parse(queued.traceparent)
    assert sent is not None
    assert sent.span_id == span.get_span_context().span_id


async def test_one_session_is_the_same_held_here_and_held_over_the_wire() -> None:
    async with far_away() as far:
        remote = await far.client.start("teller", "refund", deadline=timedelta(days=1))
        session = await far.app.session(remote.id)

        assert await remote.wait() == await session.wait()
        assert await remote.requests() == await session.requests()
        assert await far.client.requests() == await far.app.requests()
        assert await remote.history() == await session.history()
        assert await remote.continuation_token() == await session.continuation_token()
        for internals in (False, True):
            there = [event async for event in remote.events(internals=internals)]
            assert there == [event async for event in session.events(internals=internals)]


async def test_a_session_tells_what_it_waits_for_and_what_it_has_cost() -> None:
    async with far_away() as far:
        remote = await far.client.start("teller", "refund", deadline=IN_TIME)
        result = await remote.wait()

        info = await remote.info()
        here = await (await far.app.session(remote.id)).info()

        for name in ("session_id", "agent", "mode", "status", "created_at", "updated_at", "end"):
            assert getattr(info, name) == getattr(here, name)
        assert (info.token, info.over) == (here.token, "")
        assert [wait.wait for wait in info.waits] == [("request",)]
        assert info.requests == result.requests
        assert info.usage.own.output_tokens > 0
        assert info.deadline_at == IN_TIME


async def test_where_a_session_and_a_request_come_from_is_told() -> None:
    request = {**A_REQUEST, "path": ["ses_c", "ses_d"], "agent": "clerk"}
    session = {**AN_ITEM, "lineage": ["ses_a", "ses_b"], "requests": [request]}
    body = msgspec.json.encode(session)
    async with (
        Receiver(lambda post: Reply(200, (), body)) as server,
        Client(f"http://127.0.0.1:{server.port}") as client,
    ):
        info = await client.session("ses_1").info()

    [asked] = info.requests
    assert (info.parent, info.lineage) == ("ses_a", ("ses_a", "ses_b"))
    assert (asked.agent, asked.path) == ("clerk", ("ses_c", "ses_d"))
    assert (asked.tool, asked.args) == ("refund", {"order": 17, "cents": 500})
    assert asked.expires_at == datetime(2026, 1, 31, 12, tzinfo=UTC)


async def test_listings_come_in_pages_with_a_cursor() -> None:
    async with far_away() as far:
        ids = [(await far.client.start("teller", "refund")).id for _ in range(3)]
        for session_id in ids:
            await far.client.session(session_id).wait()

        for listing, name, key in (
            (far.client.sessions, "before", "session_id"),
            (far.client.requests, "after", "request_id"),
            (far.client.workers.lanes, "after", "session_id"),
        ):
            first = await listing(agent="teller", limit=2)
            rest = await listing(agent="teller", limit=2, **{name: first.cursor})  # type: ignore[arg-type]
            found = [getattr(each, key) for each in (*first, *rest)]
            assert (len(first), len(rest), rest.cursor) == (2, 1, None)
            assert len(set(found)) == 3
        assert len(await far.client.requests(kinds=["question"])) == 0
        assert len(await far.client.workers.lanes(session_id=ids[0], status="waiting")) == 1
        [worker] = await far.client.workers.list()
        [known] = await far.app.workers.list()
        assert (worker.worker, worker.pid, worker.agents) == (known.worker, known.pid, known.agents)


async def test_providers_that_do_not_answer_are_listed_and_tried() -> None:
    away = after_failure(
        None,
        Provider("teller", "openai:gpt-5.2"),
        ModelFailed(Failure("HTTP_503", "overloaded"), "transient"),
        3,
        milliseconds_at(datetime.now(UTC)),
        opens=True,
    )
    async with far_away() as far:
        await far.app.store.document.put(document_of(away, 1), expected=None)

        assert await far.client.providers.list() == await far.app.providers.list() != ()
        assert await far.client.providers.list(agent="other") == ()
        assert await far.client.providers.try_now(agent="other") == 0
        assert await far.client.providers.try_now() == 1


async def test_queues_are_changed_and_listed_and_sessions_stand_in_them() -> None:
    async with far_away() as far:
        queues = far.client.queues
        made = await queues.set("reports", concurrency=2, per=timedelta(seconds=30), rate=7)
        assert made == await far.app.queues.get("reports") == await queues.get("reports")
        assert (made.settings.per, made.settings.priority) == (30.0, 0)
        entry = QueueEntry("reports", key="acme", priority=-5, delay=timedelta(hours=1))
        session = await far.client.start("teller", "hi", queue=entry)
        log = await far.app.store.log.read(session.id, 0)
        place = log.entries[0].record.place  # type: ignore[union-attr]
        assert place is not None
        assert (place.queue, place.key, place.ahead) == ("reports", "acme", -5000)
        assert log.entries[0].record.starts_at > log.entries[0].at + 3_000_000  # type: ignore[union-attr]
        with pytest.raises(InvalidInput, match="priority"):
            await queues.set("reports", priority=601)
        with pytest.raises(UnknownQueue):
            await far.client.start("teller", "hi", queue="mail")
        await queues.remove("reports")
        assert await queues.list() == ()


async def test_an_output_is_of_the_type_that_is_given_or_that_the_agent_has() -> None:
    expected = Plan(title="move", hours=3)
    async with far_away() as far:
        sessions = []
        for number, given in enumerate(({"agent": planner}, {"agent": "planner", **PLAN})):
            agent, kind = given.pop("agent"), given
            session = await far.client.start(agent, "plan", **kind)
            sessions.append(session)
            receipt = await far.client.send(Token(f"token {number}", agent), "plan", **kind)
            prompted = await far.client.send(Key(agent, f"key {number}"), "plan", **kind)

            assert (await session.wait()).unwrap() == expected
            assert (await receipt.result()).output == expected
            assert (await prompted.result()).output == expected
        assert (await far.client.session(sessions[-1].id, **PLAN).wait()).output == expected
        assert (await far.client.resume(sessions[-1].bookmark, **PLAN).wait()).output == expected

        # Without a type it is a JSON value, and no other type is made of it.
        plain = far.client.session(sessions[-1].id)
        assert (await plain.wait()).output == {"title": "move", "hours": 3}
        with pytest.raises(InvalidInput, match="no int"):
            await far.client.session(sessions[-1].id, output_type=int).wait()


@pytest.mark.parametrize("deadline", [timedelta(0), datetime(2020, 1, 1, tzinfo=UTC), "noon", 7])
async def test_a_message_whose_deadline_is_none_is_not_sent(deadline: Any) -> None:
    async with far_away() as far:
        session = await far.client.start("teller", "hello")
        await session.wait()
        before = len(far.wire.requests)

        with pytest.raises(InvalidInput, match="deadline"):
            await session.send("in vain", deadline=deadline)

        assert len(far.wire.requests) == before


async def place_of(place: Place, session_id: str) -> None:
    await place.session(session_id)


async def in_no_lane(session: Any) -> None:
    for mistake in (session.cancel(lane="nope"), session.cancel(turn="nope/t1")):
        with pytest.raises(UnknownLane):
            await mistake
    with pytest.raises(UnknownLane):
        await session.retry(lane="nope")
    await session.history("nope")


Mistake = Callable[[Place, Any, str], Awaitable[Any]]

MISTAKES: dict[str, Mistake] = {
    "UNKNOWN_LANE": lambda place, session, _: in_no_lane(session),
    "UNKNOWN_AGENT": lambda place, session, request: place.start("nobody", "hi"),
    "INVALID_INPUT": lambda place, session, request: place.start(
        "teller",
        "hi",
        deadline=datetime(2099, 1, 1),  # noqa: DTZ001 - the mistake
    ),
    "INVALID_MESSAGE": lambda place, session, request: session.send(""),
    "INVALID_NAME": lambda place, session, request: session.send("hi", dispatch_id=""),
    "NOT_ENCODABLE": lambda place, session, request: session.answer(
        request, "approve", args={"order": object()}
    ),
    "UNKNOWN_SESSION": lambda place, session, request: place_of(place, "ses_none"),
    "UNKNOWN_DELIVERY": lambda place, session, request: session.result_of("dlv_none"),
    "UNKNOWN_REQUEST": lambda place, session, request: session.answer("req_none", "approve"),
    "INVALID_ANSWER": lambda place, session, request: session.answer(request, "perhaps"),
    "DISPATCH_CONFLICT": lambda place, session, request: place.start(
        "teller", "other", dispatch_id="one"
    ),
    "TOKEN_TAKEN": lambda place, session, request: place.start(
        "teller", "hi", continuation_token="mine"
    ),
    "NO_ACTIVE_SESSION": lambda place, session, request: place.send(Token("nobody's"), "hi"),
    "NOTHING_TO_RETRY": lambda place, session, request: session.retry(),
}


async def mistakes(place: Place) -> list[Any]:
    """Make them all, and return what is said about each."""
    session = await place.start("teller", "refund", dispatch_id="one", continuation_token="mine")
    [request] = (await session.wait()).requests
    found: list[Any] = []
    for code, make in MISTAKES.items():
        with pytest.raises(OutlastError) as caught:
            await make(place, session, request.request_id)
        error = caught.value
        assert (error.code, type(error).code) == (code, code)
        found.append((type(error).__name__, error.message, error.details))
    return found


async def test_a_mistake_is_the_same_error_here_and_over_the_wire() -> None:
    async with (
        Outlast(AGENTS, store="memory://", worker=FAST) as app,
        far_away(retry_timeout=0.0) as far,
    ):
        names, same = Names(), Names()
        here, there = names.plain(await mistakes(app)), same.plain(await mistakes(far.client))

    assert there == here


async def test_an_event_says_whose_it_is_here_and_over_the_wire() -> None:
    async with (
        Outlast(AGENTS, store="memory://", worker=FAST) as app,
        far_away() as far,
    ):
        for place in (app, far.client):
            session: Any = await place.start("teller", "hi")
            for follow in (True, False):
                events = [event async for event in session.events(follow=follow)]
                assert {(event.session_id, event.path) for event in events} == {(session.id, ())}


async def test_a_cursor_beyond_the_end_is_refused() -> None:
    async with far_away() as far:
        session = await far.client.start("teller", "hi")

        with pytest.raises(CursorAhead):
            await anext(session.events(10_000))


async def test_what_only_a_server_refuses_is_an_error_with_its_code() -> None:
    async with far_away(ServerSettings(port=0, require_key=True)) as far:
        with pytest.raises(OutlastError) as caught:
            await far.client.start("teller", "hi")

        assert type(caught.value) is OutlastError
        assert caught.value.code == "UNAUTHENTICATED"
        assert OutlastError.code == "ERROR"
        assert "outlast keys create" in caught.value.message


def test_a_remote_session_can_do_what_a_session_can() -> None:
    left_out = {"explain", "observe"}  # an observer is told in the process of its store
    public = {name for name in vars(Session) if not name.startswith("_")} - left_out
    assert public - set(dir(RemoteSession)) == set()
    shared = "start session send erase requests sessions workers providers queues open close"
    assert set(shared.split()) - set(dir(Client)) == set()


def test_every_setting_of_a_client_is_described_with_its_default() -> None:
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "client.md"
    table = guide.read_text("utf-8").partition("## Settings\n")[2].partition("\n## ")[0]
    described = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", table, re.MULTILINE))
    parameters = inspect.signature(Client).parameters.values()
    assert described == {p.name: repr(p.default) for p in parameters if p.kind == p.KEYWORD_ONLY}
