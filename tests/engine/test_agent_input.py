from typing import Any

import pytest
from scene import FAST, agent, running

from holdfast import Agent, Holdfast, HoldfastError, Image, Text
from holdfast.errors import InvalidInput
from holdfast.testing.scripted import say


async def refusal_of(awaitable: Any) -> str:
    """The code with which something is refused."""
    with pytest.raises(HoldfastError) as refused:
        await awaitable
    assert str(refused.value)
    return refused.value.code


async def test_an_unknown_agent_is_refused_and_the_known_ones_are_named() -> None:
    async with running(agent([say("hi")])) as app:
        with pytest.raises(HoldfastError, match="it has: a") as refused:
            await app.start("b", "hi")

    assert refused.value.code == "UNKNOWN_AGENT"


@pytest.mark.parametrize(
    "message", ["", [], [""], 7, None, b"bytes", ["text", 7], {"text": "hi"}, [Image()]]
)
async def test_a_message_that_is_none_is_refused(message: Any) -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", message)) == "INVALID_MESSAGE"
        session = await app.start("a", "hi")
        assert await refusal_of(session.send(message)) == "INVALID_MESSAGE"


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
    ],
)
async def test_a_name_that_cannot_be_one_is_refused(option: str, value: Any) -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", "hi", **{option: value})) == "INVALID_NAME"


@pytest.mark.parametrize(("option", "value"), [("mode", "batch"), ("capabilities", {"fly": True})])
async def test_an_option_that_makes_no_sense_is_refused(option: str, value: Any) -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.start("a", "hi", **{option: value})) == "INVALID_INPUT"


async def test_a_session_that_does_not_exist_is_refused() -> None:
    async with running(agent([say("hi")])) as app:
        assert await refusal_of(app.session("ses_none")) == "UNKNOWN_SESSION"


async def test_a_delivery_that_never_was_is_refused() -> None:
    async with running(agent([say("hi")])) as app:
        session = await app.start("a", "hi")
        assert await refusal_of(session.result_of("dlv_none")) == "UNKNOWN_DELIVERY"


def test_two_agents_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two agents are named a"):
        Holdfast([agent([]), agent([])], store="memory://")


def test_something_that_is_no_agent_is_refused() -> None:
    with pytest.raises(InvalidInput, match="str is not an Agent"):
        Holdfast(["a"], store="memory://")  # type: ignore[list-item]


@pytest.mark.parametrize("url", ["mongodb://x", "holdfast.db", "sqlite://", "sqlite://host/x"])
def test_a_store_that_there_is_none_of_is_refused(url: str) -> None:
    with pytest.raises(HoldfastError) as refused:
        Holdfast([], store=url)
    assert refused.value.code == "UNSUPPORTED_STORE"


async def test_an_app_that_is_open_cannot_be_opened_again() -> None:
    async with running(agent([])) as app:
        assert await refusal_of(app.open()) == "INVALID_INPUT"


async def test_an_app_can_be_opened_and_closed_by_hand() -> None:
    app = Holdfast([agent([say("hi")])], store="memory://", worker=FAST)
    await app.open()
    session = await app.start("a", Text("hello"))
    assert (await session.wait()).output == "hi"
    await app.close()
    await app.close()


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
