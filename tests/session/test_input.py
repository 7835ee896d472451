from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from scene import FAST, agent, log_of, running

from outlast import (
    Agent,
    File,
    Image,
    Key,
    Outlast,
    OutlastError,
    QueueLimits,
    Session,
    Text,
    Token,
    Webhook,
    tool,
)
from outlast.core.message import UserMessage
from outlast.core.record import CancelRequested
from outlast.errors import InvalidInput, NotEncodable, StoreUnavailable
from outlast.integration.outbox.settings import WebhookSettings
from outlast.session.inbox import Inbox
from outlast.testing.scripted import call, say

HOOK = "https://hooks.example.com/outlast"


async def refusal_of(awaitable: Any) -> str:
    """The code with which something is refused."""
    with pytest.raises(OutlastError) as refused:
        await awaitable
    assert str(refused.value)
    return refused.value.code


async def test_an_unknown_agent_is_refused_and_the_known_ones_are_named() -> None:
    async with running(agent([say("hi")])) as app:
        with pytest.raises(OutlastError, match="it has: a") as refused:
            await app.start("b", "hi")

    assert refused.value.code == "UNKNOWN_AGENT"


@pytest.mark.parametrize(
    "message",
    [
        *("", [], [""], 7, None, b"bytes", ["text", 7], {"text": "hi"}, [Image()]),
        *(Text(7), Text("hi", extra=None), Image(data="not bytes"), Image(b".", media_type=None)),  # type: ignore[arg-type]
        *(Image(url=7), File(b".", name=None), [Text("hi"), File(data=None)]),  # type: ignore[arg-type]
        *(["look", Image()], ["look", File(name="a.pdf")], Image(b".", url="https://x.example/a")),
    ],
)
async def test_a_message_that_is_none_is_refused(message: Any) -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", message)) == "INVALID_MESSAGE"
        session = await app.start("a", "hi")
        assert await refusal_of(session.send(message)) == "INVALID_MESSAGE"


@pytest.mark.parametrize("option", ["dispatch_id", "continuation_token", "tenant", "lane"])
async def test_a_name_with_half_a_character_in_it_is_refused_for_what_is_wrong(option: str) -> None:
    async with running(agent([say("hi")])) as app:
        with pytest.raises(OutlastError, match=r"half a character .*: 'caf\\udce9'") as refused:
            await app.start("a", "hi", **{option: "caf\udce9"})  # type: ignore[arg-type]
        assert refused.value.code == "INVALID_NAME"


async def test_a_message_of_50_megabytes_is_refused_before_anything_is_written() -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", "x" * 50_000_000)) == "MESSAGE_TOO_LARGE"
        assert await app.sessions() == []


async def test_a_text_that_is_no_unicode_is_refused() -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", "\ud800")) == "NOT_ENCODABLE"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dispatch_id", ""),
        ("dispatch_id", "x" * 257),
        ("continuation_token", ""),
        ("lane", ""),
        ("tenant", ""),
        ("tenant", 7),
        ("dispatch_id", 7),
        ("continuation_token", 7),
        ("lane", None),
        ("principal", None),
        ("principal", 7),
        ("principal", "x" * 257),
    ],
)
async def test_a_name_that_cannot_be_one_is_refused(option: str, value: Any) -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", "hi", **{option: value})) == "INVALID_NAME"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mode", "batch"),
        ("mode", None),
        ("capabilities", {"fly": True}),
        ("capabilities", {7: True}),
        ("capabilities", 7),
        ("deadline", 7),
        ("deadline", "tomorrow"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused(option: str, value: Any) -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", "hi", **{option: value})) == "INVALID_INPUT"


FAR_WEST = timezone(timedelta(hours=-12))

Mistake = Callable[[Outlast, Session[Any]], Awaitable[Any]]


async def query(session: Session, kind: Any) -> list[Any]:
    return await session.query(kind).all()


MISTAKES: dict[str, tuple[Mistake, str]] = {
    "send by nobody": (lambda _, s: s.send("hi", principal=None), "INVALID_NAME"),  # type: ignore[arg-type]
    "send by a number": (lambda _, s: s.send("hi", principal=7), "INVALID_NAME"),  # type: ignore[arg-type]
    "send with a number": (lambda _, s: s.send("hi", dispatch_id=7), "INVALID_NAME"),  # type: ignore[arg-type]
    "send until a number": (lambda _, s: s.send("hi", deadline=7), "INVALID_INPUT"),  # type: ignore[arg-type]
    "cancel for nothing": (lambda _, s: s.cancel(None), "INVALID_INPUT"),  # type: ignore[arg-type]
    "cancel no turn": (lambda _, s: s.cancel(turn=7), "INVALID_NAME"),  # type: ignore[arg-type]
    "cancel by nobody": (lambda _, s: s.cancel(principal=None), "INVALID_NAME"),  # type: ignore[arg-type]
    "cancel at length": (lambda _, s: s.cancel("x" * 50_000_000), "MESSAGE_TOO_LARGE"),
    "cancel in halves": (lambda _, s: s.cancel("\ud800"), "NOT_ENCODABLE"),
    "cancel in no lane": (lambda _, s: s.cancel(lane="nope"), "UNKNOWN_LANE"),
    "cancel a turn of no lane": (lambda _, s: s.cancel(turn="nope/t1"), "UNKNOWN_LANE"),
    "retry in no lane": (lambda _, s: s.retry(lane="nope"), "UNKNOWN_LANE"),
    "remember no lane": (lambda _, s: s.history("nope"), "UNKNOWN_LANE"),
    "end for nothing": (lambda _, s: s.end(None), "INVALID_INPUT"),  # type: ignore[arg-type]
    "end by nobody": (lambda _, s: s.end(principal=None), "INVALID_NAME"),  # type: ignore[arg-type]
    "deliver to a number": (lambda app, _: app.send(Token(7), "hi"), "INVALID_NAME"),  # type: ignore[arg-type]
    "deliver for nobody": (
        lambda app, _: app.send(Token("here"), "hi", principal=None),  # type: ignore[arg-type]
        "INVALID_NAME",
    ),
    "deliver with a number": (
        lambda app, _: app.send(Token("here"), "hi", dispatch_id=7),  # type: ignore[arg-type]
        "INVALID_NAME",
    ),
    "deliver anew with a number": (
        lambda app, _: app.send(Token("there", "a"), "hi", dispatch_id=7),  # type: ignore[arg-type]
        "INVALID_NAME",
    ),
    "prompt for nobody": (
        lambda app, _: app.send(Key("a", "k"), "hi", principal=None),  # type: ignore[arg-type]
        "INVALID_NAME",
    ),
    "prompt with a number": (
        lambda app, _: app.send(Key("a", "k"), "hi", dispatch_id=7),  # type: ignore[arg-type]
        "INVALID_NAME",
    ),
    "list a few sessions": (lambda app, _: app.sessions(limit="a few"), "INVALID_INPUT"),  # type: ignore[arg-type]
    "list strange sessions": (lambda app, _: app.sessions(status="x"), "INVALID_INPUT"),  # type: ignore[arg-type]
    "list strange lanes": (lambda app, _: app.workers.lanes(status=["idle"]), "INVALID_INPUT"),  # type: ignore[arg-type]
    "list no requests": (lambda app, _: app.requests(limit=0), "INVALID_INPUT"),
    "list requests of a number": (lambda app, _: app.requests(kinds=7), "INVALID_INPUT"),  # type: ignore[arg-type]
    "list requests of a word": (lambda app, _: app.requests(kinds="approval"), "INVALID_INPUT"),  # type: ignore[arg-type]
    "list strange requests": (lambda app, _: app.requests(kinds=["wish", []]), "INVALID_INPUT"),  # type: ignore[list-item]
    "query a number": (lambda _, s: query(s, 7), "INVALID_INPUT"),
    "query a name": (lambda _, s: query(s, "Note"), "INVALID_INPUT"),
    "list far too many": (lambda app, _: app.sessions(limit=2**70), "INVALID_INPUT"),
    "list sessions before a number": (lambda app, _: app.sessions(before=5), "INVALID_CURSOR"),  # type: ignore[arg-type]
    "list sessions in halves": (lambda app, _: app.sessions(agent="\ud800"), "INVALID_NAME"),
    "list requests of nobody": (lambda app, _: app.requests(tenant=7), "INVALID_NAME"),  # type: ignore[arg-type]
    "list requests after half": (lambda app, _: app.requests(after="\ud800"), "INVALID_CURSOR"),
    "list lanes after a number": (lambda app, _: app.workers.lanes(after=5), "INVALID_CURSOR"),  # type: ignore[arg-type]
    "list lanes after a word": (lambda app, _: app.workers.lanes(after="ab"), "INVALID_CURSOR"),  # type: ignore[arg-type]
    "list lanes of half a worker": (
        lambda app, _: app.workers.lanes(worker="\ud800"),
        "INVALID_NAME",
    ),
    "erase what cannot be": (lambda app, _: app.erase("\ud800"), "UNKNOWN_SESSION"),
    "drain what cannot be": (lambda app, _: app.workers.drain("\ud800"), "UNKNOWN_WORKER"),
    "call back nowhere": (lambda app, _: app.callbacks.receive(None, b""), "UNKNOWN_CALLBACK"),  # type: ignore[arg-type]
    "send by the end of time": (
        lambda _, s: s.send("hi", deadline=datetime.max.replace(tzinfo=FAR_WEST)),
        "INVALID_INPUT",
    ),
    "send within eternity": (
        lambda _, s: s.send("hi", deadline=timedelta.max),
        "INVALID_INPUT",
    ),
    "list less than no lanes": (lambda app, _: app.workers.lanes(limit=-1), "INVALID_INPUT"),
    "read from a word": (lambda _, s: log_of(s, after="x"), "INVALID_CURSOR"),
    "read from before": (lambda _, s: log_of(s, after=-1), "INVALID_CURSOR"),
    "read children too": (lambda _, s: log_of(s, after=None, children=True), "INVALID_CURSOR"),
    "read from far away": (lambda _, s: log_of(s, after=10**400), "INVALID_CURSOR"),
    "read from a line": (lambda _, s: log_of(s, after="1\n"), "INVALID_CURSOR"),
    "list sessions before nothing": (lambda app, _: app.sessions(before=""), "INVALID_CURSOR"),
    "list sessions before half": (lambda app, _: app.sessions(before="\ud800"), "INVALID_CURSOR"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_what_cannot_be_is_refused_and_the_session_goes_on(mistake: str) -> None:
    make, code = MISTAKES[mistake]
    async with running(agent([say("hi"), say("still here")])) as app:
        session = await app.start("a", "hi", continuation_token="here")
        await session.wait()
        before = await log_of(session)

        assert await refusal_of(make(app, session)) == code
        assert await log_of(session) == before
        assert len(await app.sessions()) == 1
        assert [lane.lane for lane in (await session.info()).lanes] == ["main"]
        assert (await (await session.send("and now?")).result()).output == "still here"


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"text": 7}, "INVALID_INPUT"),
        ({"text": "x" * 50_000_000}, "MESSAGE_TOO_LARGE"),
        ({"option": 7}, "INVALID_ANSWER"),
        ({"option": "approve", "args": 7}, "INVALID_ANSWER"),
        ({"option": "approve", "args": {"note": "x" * 50_000_000}}, "MESSAGE_TOO_LARGE"),
        ({"option": "approve", "principal": None}, "INVALID_NAME"),
        ({"option": "approve", "dispatch_id": 7}, "INVALID_NAME"),
    ],
)
async def test_an_answer_that_cannot_be_is_refused_and_the_question_stays_open(
    answer: dict[str, Any], code: str
) -> None:
    @tool(approval="always")
    async def pay(note: str = "") -> str:
        return "paid"

    async with running(agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests

        assert await refusal_of(session.answer(request.request_id, **answer)) == code
        assert await session.requests() == (request,)
        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "done"


class Shout(str):
    """A text of a kind that no encoder knows."""


async def test_a_text_of_any_kind_is_stored_as_the_text_that_it_is() -> None:
    async with running(agent([say("hi")])) as app:
        session = await app.start("a", Shout("go"))
        await session.wait()

        [message, _] = await session.history()
        assert message == UserMessage((Text("go"),))


async def test_a_part_that_cannot_be_stored_is_refused_by_name() -> None:
    async with running(agent([say("hi")])) as app:
        with pytest.raises(NotEncodable, match=r"File\(name=…\) cannot be stored"):
            await app.start("a", ["see", File(b"x", name="\ud800")])


async def test_a_record_of_a_wrong_type_never_reaches_the_log() -> None:
    async with running(agent([say("hi")])) as app:
        session = await app.start("a", "hi")
        await session.wait()
        wrong = CancelRequested(delivery_id="", reason=7)  # type: ignore[arg-type]
        inbox = Inbox(app.store, app.clock)

        refused = inbox.add(session.id, "default", "main", wrong, scope="s", dispatch_id=None)
        with pytest.raises(NotEncodable, match=r"cancel\.requested .* - at `\$\.reason`"):
            await refused


@pytest.mark.parametrize("name", ["none", "", "\0", "\ud800", "x" * 10_000, 7, None, []])
async def test_what_does_not_exist_is_refused_whatever_it_is_called(name: Any, path: Path) -> None:
    async with running(agent([say("hi")]), store=f"sqlite:///{path}") as app:
        session = await app.start("a", "hi")
        assert await refusal_of(app.session(name)) == "UNKNOWN_SESSION"
        assert await refusal_of(session.result_of(name)) == "UNKNOWN_DELIVERY"
        assert await refusal_of(session.answer(name, "yes")) == "UNKNOWN_REQUEST"


@pytest.mark.parametrize(
    "webhook",
    [
        Webhook(7),  # type: ignore[arg-type]
        Webhook(HOOK, events=7),  # type: ignore[arg-type]
        Webhook(HOOK, events=[7]),  # type: ignore[list-item]
        Webhook(HOOK, secret=7),  # type: ignore[arg-type]
    ],
    ids=str,
)
async def test_a_webhook_that_cannot_be_is_refused(webhook: Any) -> None:
    webhooks = WebhookSettings(secret="whsec_" + "QUFB" * 12)
    async with running(agent([say("hi")]), webhooks=webhooks) as app:
        refused = await refusal_of(app.start("a", "hi", webhook=webhook))
        assert refused in ("INVALID_URL", "INVALID_DEFINITION")
        assert await app.sessions() == []


@pytest.mark.parametrize(
    "option",
    [
        {"queue_limits": QueueLimits(session="x")},  # type: ignore[arg-type]
        {"queue_limits": QueueLimits(session=-1)},
        {"queue_limits": QueueLimits(tenant=None)},  # type: ignore[arg-type]
        {"public_url": 7},
        {"agents": 7},
        {"agents": None},
        {"agents": agent([])},
        {"agents": "a"},
        {"schedules": 7},
        {"connections": 7},
        {"channels": 7},
        {"webhooks": 7},
        {"worker": True},
        {"telemetry": 7},
    ],
    ids=str,
)
def test_an_app_that_cannot_work_is_refused(option: dict[str, Any]) -> None:
    [what] = option
    with pytest.raises(InvalidInput, match=rf"^{what}\b"):
        Outlast(**{"agents": [agent([])], "store": "memory://", **option})


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two agents are named a"):
        Outlast([agent([]), agent([])], store="memory://")


def test_something_that_is_no_agent_is_refused() -> None:
    with pytest.raises(InvalidInput, match="str is not an Agent"):
        Outlast(["a"], store="memory://")  # type: ignore[list-item]


@pytest.mark.parametrize(
    "url",
    ["mongodb://x", "outlast.db", "sqlite://", "sqlite://host/x", Path("outlast.db"), 7, None],
)
def test_a_store_that_there_is_none_of_is_refused(url: Any) -> None:
    with pytest.raises(OutlastError) as refused:
        Outlast([], store=url)
    assert refused.value.code == "UNSUPPORTED_STORE"


async def test_what_a_notebook_shows_of_a_handle_says_what_it_is() -> None:
    async with running(agent([say("hi"), say("ho")])) as app:
        session = await app.start("a", "hello")
        sent = await session.send("hello", lane="side", dispatch_id="one")
        again = await session.send("hello", lane="side", dispatch_id="one")

    assert repr(session) == f"Session({session.id})"
    assert repr(sent) == f"Receipt({sent.delivery_id} for {session.id}, lane side)"
    assert repr(again) == f"Receipt({sent.delivery_id} for {session.id}, lane side, duplicate)"
    assert repr(tool(name="pay")(lambda: None)) == "Tool(pay)"


async def test_an_app_that_is_open_cannot_be_opened_again() -> None:
    async with running(agent([])) as app:
        assert await refusal_of(app.open()) == "INVALID_INPUT"


async def test_an_app_can_be_opened_and_closed_by_hand() -> None:
    app = Outlast([agent([say("hi")])], store="memory://", worker=FAST)
    await app.open()
    session = await app.start("a", Text("hello"))
    assert (await session.wait()).output == "hi"
    await app.close()
    await app.close()


@pytest.mark.parametrize("store", ["memory://", "sqlite:///never.db"])
async def test_an_app_that_was_not_opened_takes_nothing_in(store: str) -> None:
    app = Outlast([agent([say("hi")])], store=store)
    for attempt in (
        app.start("a", "hello"),
        app.send(Token("token", "a"), "hello"),
        app.send(Key("a", "key"), "hello"),
    ):
        with pytest.raises(StoreUnavailable, match="not open"):
            await attempt


async def test_an_app_without_a_worker_starts_and_reads_and_works_on_nothing() -> None:
    async with running(agent([say("hi")]), settings=None) as app:
        session = await app.start("a", "hello")

        assert [e.type async for e in session.events(follow=False)] == [
            "session.started",
            "delivery.queued",
        ]


async def test_sessions_are_listed_newest_first_by_what_they_are() -> None:
    other = Agent("b", agent([say("hi")]).model)
    async with running(agent([say("hi")]), other) as app:
        first = await app.start("a", "1", tenant="acme")
        second = await app.start("b", "2")
        await first.wait()
        await second.wait()

        assert [s.session_id for s in await app.sessions()] == [second.id, first.id]
        assert [s.session_id for s in await app.sessions(agent="a")] == [first.id]
        assert [s.session_id for s in await app.sessions(tenant="default")] == [second.id]
        assert [s.session_id for s in await app.sessions(status="idle", limit=1)] == [second.id]
        assert [s.session_id for s in await app.sessions(before=second.id)] == [first.id]
