from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from scene import agent, results_of, running, the

from outlast import Agent, Context, Outlast, OutlastError, Token, tool
from outlast.errors import NoActiveSession
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedModel, call, say
from outlast.testing.wrapped_store import WrappedStore


@tool
async def move(ctx: Context, to: str, revoke: list[str] | None = None) -> str:
    await ctx.session.set_continuation_token(to, revoke=revoke or [])
    return f"moved to {to}"


async def delivered_to(app: Outlast, token: str) -> str:
    """The session that a message to a token wakes."""
    return (await app.send(Token(token), "hello?")).session_id


async def test_a_message_to_a_continuation_token_wakes_its_session() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        session = await app.start("a", "hi", continuation_token="thread-1")
        receipt = await app.send(Token("thread-1"), "hello?")

        assert receipt.session_id == session.id
        assert (await receipt.result()).output == "two"


async def test_a_session_has_an_unguessable_token_where_none_is_given() -> None:
    async with running(agent([say("one")])) as app:
        first, second = await app.start("a", "hi"), await app.start("a", "hi")
        tokens = {await first.continuation_token(), await second.continuation_token()}

        assert len(tokens) == 2
        assert all(len(token) >= 24 and token not in first.id for token in tokens)


async def test_tokens_are_not_shown_to_readers() -> None:
    async with running(agent([call("move", to="secret-2"), say("done")], tools=[move])) as app:
        session = await app.start("a", "hi", continuation_token="secret-1")
        await session.wait()

        told = str(
            [e async for e in session.events(internals=True) if e.type.startswith("session")]
        )
        assert "secret" not in told


async def test_a_delivery_starts_a_session_where_an_agent_is_given() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        first = await app.send(Token("thread-1", "a"), "hi")
        second = await app.send(Token("thread-1", "a"), "hello?")

        assert first.session_id == second.session_id
        assert (await second.result()).output == "two"


async def test_a_delivery_to_an_unknown_token_is_refused() -> None:
    async with running(agent([say("one")])) as app:
        with pytest.raises(OutlastError) as refused:
            await app.send(Token("nowhere"), "hello?")

    assert refused.value.code == "NO_ACTIVE_SESSION"


async def test_a_token_belongs_to_one_living_session() -> None:
    async with running(agent([say("one")])) as app:
        session = await app.start("a", "hi", continuation_token="thread-1")
        with pytest.raises(OutlastError) as refused:
            await app.start("a", "hi", continuation_token="thread-1")
        assert refused.value.code == "TOKEN_TAKEN"

        await session.end()
        await session.wait()
        again = await app.start("a", "hi", continuation_token="thread-1")
        assert await delivered_to(app, "thread-1") == again.id


async def test_the_same_token_in_another_tenant_is_another_token() -> None:
    async with running(agent([say("one")])) as app:
        ours = await app.start("a", "hi", continuation_token="thread-1")
        theirs = await app.start("a", "hi", continuation_token="thread-1", tenant="acme")

        receipt = await app.send(Token("thread-1"), "hello?", tenant="acme")
        assert receipt.session_id == theirs.id != ours.id


async def test_a_session_may_be_given_another_token_and_the_old_one_forwards() -> None:
    script = [call("move", to="new"), say("moved"), say("one"), say("two")]
    async with running(agent(script, tools=[move])) as app:
        session = await app.start("a", "hi", continuation_token="old")
        await session.wait()

        assert await session.continuation_token() == "new"
        assert await delivered_to(app, "new") == session.id
        assert await delivered_to(app, "old") == session.id
        assert len(await the(session, "session.rekeyed")) == 1


async def test_a_revoked_token_leads_nowhere() -> None:
    script = [call("move", to="new", revoke=["old"]), say("moved")]
    async with running(agent(script, tools=[move])) as app:
        session = await app.start("a", "hi", continuation_token="old")
        await session.wait()

        with pytest.raises(OutlastError) as dead:
            await app.send(Token("old"), "hello?")
        assert dead.value.code == "NO_ACTIVE_SESSION"
        assert await delivered_to(app, "new") == session.id


async def test_a_tool_cannot_take_another_sessions_token() -> None:
    async with running(agent([call("move", to="theirs"), say("sorry")], tools=[move])) as app:
        other = await app.start("a", "hi", continuation_token="theirs", lane="idle")
        await other.wait()
        session = await app.start("a", "hi")
        await session.wait()

        [told] = await results_of(session)
        assert told.startswith("TOKEN_TAKEN")
        assert await delivered_to(app, "theirs") == other.id


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, path: Path) -> str:
    """The URL of a store, of each kind."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{path}"


async def test_a_delivery_keeps_its_receipt_when_its_token_leads_nowhere_any_more(
    place: str,
) -> None:
    async with running(agent([say("one"), say("two")]), store=place) as app:
        session = await app.start("a", "hi", continuation_token="here")
        first = await app.send(Token("here"), "hello?", dispatch_id="d-1")
        await first.result()
        await session.end()
        await session.wait()

        again = await app.send(Token("here"), "hello?", dispatch_id="d-1")
        assert (again.delivery_id, again.duplicate) == (first.delivery_id, True)
        assert (await again.result()).output == "two"
        for message, dispatch_id, code in (
            ("hello?", "d-2", "NO_ACTIVE_SESSION"),
            ("hello?", None, "NO_ACTIVE_SESSION"),
            ("other", "d-1", "DISPATCH_CONFLICT"),
        ):
            with pytest.raises(OutlastError) as refused:
                await app.send(Token("here"), message, dispatch_id=dispatch_id)
            assert refused.value.code == code


async def test_a_delivery_keeps_its_receipt_when_its_token_leads_elsewhere(place: str) -> None:
    async with running(agent([say("one"), say("two")]), store=place) as app:
        first = await app.send(Token("here", "a"), "hello?", dispatch_id="d-1")
        await first.session.end()
        await first.session.wait()
        other = await app.send(Token("here", "a"), "hi")

        again = await app.send(Token("here", "a"), "hello?", dispatch_id="d-1")
        assert again.session_id == again.session.id == first.session_id != other.session_id
        assert (await again.result()).status == (await first.result()).status


async def test_the_same_start_with_the_same_dispatch_id_is_the_same_session() -> None:
    async with running(agent([say("one")])) as app:
        first = await app.start("a", "hi", dispatch_id="req-1")
        again = await app.start("a", "hi", dispatch_id="req-1")

        assert again.id == first.id
        with pytest.raises(OutlastError) as conflict:
            await app.start("a", "something else", dispatch_id="req-1")
        assert conflict.value.code == "DISPATCH_CONFLICT"


async def test_the_same_message_with_the_same_dispatch_id_is_taken_once() -> None:
    async with running(agent([say("one"), say("two")])) as app:
        session = await app.start("a", "hi")
        first = await session.send("more", dispatch_id="m-1")
        again = await session.send("more", dispatch_id="m-1")
        await session.wait()

        assert (again.delivery_id, again.duplicate) == (first.delivery_id, True)
        assert len(await the(session, "turn.started")) == 2
        with pytest.raises(OutlastError) as conflict:
            await session.send("other", dispatch_id="m-1")
        assert conflict.value.code == "DISPATCH_CONFLICT"


async def test_what_is_another_sessions_address_stays_that_whoever_revokes_it() -> None:
    script = [call("move", to="new", revoke=["hers", "nobody's"]), say("moved")]
    quiet = Agent("b", ScriptedModel([say("one"), say("two")]))
    async with running(agent(script, tools=[move]), quiet) as app:
        other = await app.start("b", "hi", continuation_token="hers")
        session = await app.start("a", "hi")
        await session.wait()

        assert await delivered_to(app, "hers") == other.id
        for each in (session, other):
            assert not await verify(app.store, each.id)


class Ending(WrappedStore):
    """A store in which a session ends just after it was found by its token."""

    ends: Callable[[], Awaitable[object]] | None = None

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        found = await super().find_token(tenant, token, living=living)
        if found and (ends := self.ends):
            self.ends = None
            await ends()
        return found


@pytest.mark.parametrize("starts", [True, False])
async def test_a_delivery_to_a_session_that_ends_meanwhile_finds_none(starts: bool) -> None:
    store = Ending(MemoryStore())
    async with running(agent([say("hello")]), store=store) as app:
        session = await app.start("a", "hi", continuation_token="thread-1")
        await session.wait()

        async def end() -> None:
            await session.end("enough")
            await session.wait()

        store.ends = end
        if starts:
            receipt = await app.send(Token("thread-1", "a"), "hello?")
            assert receipt.session_id != session.id
            assert (await receipt.result()).output == "hello"
        else:
            with pytest.raises(NoActiveSession):
                await app.send(Token("thread-1"), "hello?")
