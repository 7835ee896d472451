"""Tools that are renamed, changed or gone while calls of them are open, on both stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from scene import agent, results_of, running, seen, the, until

from outlast import Agent, Context, DedupeKey, Session, Tool, tool
from outlast.agents.model.client import ModelRequest
from outlast.core import code_wait
from outlast.errors import InvalidAnswer, InvalidDefinition
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedReply, call, say


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


def calls_refund(request: ModelRequest) -> ScriptedReply:
    return call("refund", cents=5) if len(request.view.messages) == 1 else say("done")


def shop(*tools: Tool[Any, Any]) -> Agent[Any, Any]:
    return agent(calls_refund, tools=tools)


@tool(approval="always")
async def refund(ctx: Context, cents: int) -> str:
    """Give money back."""
    return f"refunded {cents}"


@tool(name="refund")
async def refund_unasked(ctx: Context, cents: int) -> str:
    """Give money back."""
    return f"refunded {cents}"


@tool(approval="always", aliases=["refund"])
async def issue_refund(ctx: Context, cents: int) -> str:
    """Give money back."""
    return f"issued {cents}"


@tool(approval="always", aliases=["refund"])
async def refund_to(ctx: Context, cents: int, to: str) -> str:
    """Give money back to somebody."""
    return f"gave {cents} to {to}"


async def begin(store: str, *tools: Tool[Any, Any]) -> tuple[str, str]:
    """Start a session that is asked about a call of `refund`; return it and the request."""
    async with running(shop(*tools), store=store) as app:
        session = await app.start("a", "go")
        opened = await until(session, "request.opened")
        return session.id, str(opened.data["request_id"])


async def vanished(session: Session[Any]) -> None:
    """Wait until a worker has looked for the tool, and the session rests for its code."""
    await seen(session, "tool.vanished")
    async for event in session.events():
        if event.type == "session.waiting" and "code" in event.data["wait"]:
            return


async def approved_without_its_tool(store: str) -> str:
    """Leave a session whose call was approved, and whose tool is in no code."""
    session_id, request_id = await begin(store, refund)
    async with running(shop(), store=store) as app:
        session = await app.session(session_id)
        await session.answer(request_id, "approve", principal="ada")
        await vanished(session)
    return session_id


async def test_an_open_approval_is_taken_by_the_tool_that_has_the_old_name_as_an_alias(
    store: str,
) -> None:
    session_id, request_id = await begin(store, refund)
    async with running(shop(issue_refund), store=store) as app:
        session = await app.session(session_id)
        await session.answer(request_id, "approve")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["issued 5"]
        assert await the(session, "tool.vanished") == []
        assert not await verify(app.store, session.id)


@pytest.mark.parametrize("back", [refund, issue_refund], ids=["rolled back", "alias"])
async def test_an_approved_call_whose_tool_is_gone_waits_for_code_that_has_it(
    store: str, back: Tool[Any, Any]
) -> None:
    session_id = await approved_without_its_tool(store)
    async with running(shop(back), store=store) as app:
        session = await app.session(session_id)
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["refunded 5" if back is refund else "issued 5"]
        assert len(await the(session, "request.opened")) == 1
        assert not await verify(app.store, session.id)


async def test_an_approved_call_outlasts_the_patience_that_others_have(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_wait, "CODE_PATIENCE", 1)
    session_id = await approved_without_its_tool(store)
    async with running(shop(), store=store) as app:
        session = await app.session(session_id)
        result = await session.wait(timeout=0)
        assert result.waiting_for is not None
        assert (result.waiting_for.kind, result.waiting_for.blocked) == ("code", True)
        assert "refund" in str(result.waiting_for.error)
        explained = await session.explain()
        [told] = [link for lane in explained.lanes for link in lane.links if link.kind == "code"]
        assert '@tool(aliases=["refund"])' in told.text
        assert told.until is None
    async with running(shop(refund), store=store) as app:
        assert (await (await app.session(session_id)).wait()).output == "done"


async def test_a_call_that_nobody_was_asked_about_waits_a_while_and_then_the_model_is_told(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @tool(name="refund", idempotent=True, max_attempts=2)
    async def failing(ctx: Context, cents: int) -> str:
        """Give money back."""
        raise ConnectionError

    async with running(shop(failing), store=store) as app:
        session_id = (await app.start("a", "go")).id
        await seen(await app.session(session_id), "tool.failed")
    async with running(shop(), store=store) as app:
        session = await app.session(session_id)
        await vanished(session)
        waiting = (await session.wait(timeout=0)).waiting_for
        assert waiting is not None
        assert waiting.kind == "code"
    monkeypatch.setattr(code_wait, "CODE_PATIENCE", 1)
    async with running(shop(), store=store) as app:
        session = await app.session(session_id)
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert told.startswith("UNKNOWN_TOOL: refund is no longer there")
        assert not await verify(app.store, session.id)


async def test_arguments_that_do_not_fit_any_more_are_refused_to_who_approves_them(
    store: str,
) -> None:
    session_id, request_id = await begin(store, refund)
    async with running(shop(refund_to), store=store) as app:
        session = await app.session(session_id)
        with pytest.raises(InvalidAnswer) as refused:
            await session.answer(request_id, "approve")
        assert 'refund({"cents":5})' in refused.value.message
        assert "refund_to(cents: integer, to: string)" in refused.value.message
        await session.answer(request_id, "approve", args={"cents": 4, "to": "ada"})
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert told.endswith("gave 4 to ada")


async def test_an_approval_whose_arguments_do_not_fit_any_more_is_asked_for_again(
    store: str,
) -> None:
    session_id = await approved_without_its_tool(store)
    async with running(shop(refund_to), store=store) as app:
        session = await app.session(session_id)
        [_, again] = await seen(session, "request.opened", 2)
        assert 'It was asked for as refund({"cents":5})' in again.data["prompt"]
        assert "now it is refund_to(cents: integer, to: string)" in again.data["prompt"]
        await session.answer(again.data["request_id"], "approve", args={"cents": 4, "to": "ada"})
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert told.endswith("gave 4 to ada")
        assert not await verify(app.store, session.id)


async def test_a_call_that_a_model_makes_by_an_old_name_is_told_the_new_one() -> None:
    async with running(shop(issue_refund)) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert "there is no tool named refund any more: it is issue_refund now" in told


async def test_a_renamed_tool_keeps_the_idempotency_keys_of_its_oldest_name(store: str) -> None:
    key = DedupeKey(lambda args: "order 17", scope="tenant")

    def paying(name: str) -> Any:
        script = [call(name, cents=5), say("done")]
        return lambda request: script[min(len(request.view.messages) - 1, 1)]

    @tool(idempotency_key=key)
    async def pay(ctx: Context, cents: int) -> str:
        """Pay."""
        return "paid by pay"

    @tool(idempotency_key=key, aliases=["pay"])
    async def settle(ctx: Context, cents: int) -> str:
        """Pay."""
        return "paid by settle"

    async with running(agent(paying("pay"), tools=[pay]), store=store) as app:
        await (await app.start("a", "go")).wait()
    async with running(agent(paying("settle"), tools=[settle]), store=store) as app:
        session = await app.start("a", "go")
        await session.wait()
        assert await results_of(session) == ["paid by pay"]


def test_an_alias_that_means_two_tools_is_refused() -> None:
    @tool(aliases=["refund"])
    async def pay_back(ctx: Context, cents: int) -> str:
        """Give money back."""
        return ""

    with pytest.raises(InvalidDefinition, match="refund, an alias of the tool issue_refund"):
        shop(refund, issue_refund)
    with pytest.raises(InvalidDefinition, match="also means pay_back"):
        shop(pay_back, issue_refund)
    with pytest.raises(InvalidDefinition, match="cannot be a tool's name"):
        tool(aliases=["give back"])(refund.function)
    with pytest.raises(InvalidDefinition, match="an alias of a tool has to be a name, not an empt"):
        tool(aliases=[""])(refund.function)
    with pytest.raises(InvalidDefinition, match="aliases of refund have to be names in a sequence"):
        tool(aliases="give")(refund.function)


async def test_a_call_that_may_have_happened_under_an_old_name_is_asked_about_under_the_new_one(
    tmp_path: Path,
) -> None:
    @tool(name="refund", timeout=0.05)
    async def slow(ctx: Context, cents: int) -> str:
        """Give money back."""
        await asyncio.Event().wait()
        return ""

    @tool(aliases=["refund"])
    async def issue(ctx: Context, cents: int) -> str:
        """Give money back."""
        return "issued"

    def calls_issue(request: ModelRequest) -> ScriptedReply:
        last = str(request.view.messages[-1])
        return call("issue", cents=5) if "again" in last else say("done")

    store = f"sqlite:///{tmp_path / 'outlast.db'}"
    async with running(shop(slow), store=store) as app:
        session_id = (await app.start("a", "go")).id
        await (await app.session(session_id)).wait()
    async with running(agent(calls_issue, tools=[issue]), store=store) as app:
        session = await app.session(session_id)
        await session.send("again")
        [asked] = await seen(session, "request.opened")
        assert "issue may have happened already, as t1.s1.c1" in asked.data["prompt"]
