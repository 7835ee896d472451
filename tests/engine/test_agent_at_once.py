"""What happens at the same time: updates of one slice, deliveries to one token."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast import Agent, Context, Holdfast, tool
from holdfast.errors import DispatchConflict
from holdfast.testing import ScriptedModel, calls, say
from holdfast.verify import verify


class Budget(msgspec.Struct):
    cents: int


async def test_of_two_calls_that_update_a_slice_at_the_same_time_none_is_lost():
    both = asyncio.Barrier(2)

    @tool
    async def spend(ctx: Context, cents: int) -> int:
        """Spend."""
        await both.wait()
        left = ctx.session.update(Budget, lambda b: Budget((b.cents if b else 10_000) - cents))
        return left.cents

    script = [calls(("spend", {"cents": 3_000}), ("spend", {"cents": 4_000})), say("Spent.")]
    agent = Agent("spender", ScriptedModel(script), tools=[spend])
    async with Holdfast([agent], store="memory://") as app:
        session = await app.start(agent, "Go")
        assert (await session.wait()).output == "Spent."
        assert (await session.query(Budget)).latest() == Budget(3_000)


def greeter() -> Agent:
    return Agent("greeter", ScriptedModel([say(str(n)) for n in range(20)]))


async def test_a_repeated_delivery_to_a_token_gets_the_first_receipt_whether_it_started_or_not():
    async with Holdfast([greeter()], store="memory://") as app:
        first = await app.deliver("thread-1", "Hi", agent="greeter", dispatch_id="m-1")
        again = await app.deliver("thread-1", "Hi", agent="greeter", dispatch_id="m-1")
        assert again.delivery_id == first.delivery_id
        assert again.duplicate
        with pytest.raises(DispatchConflict):
            await app.deliver("thread-1", "Something else", agent="greeter", dispatch_id="m-1")


async def test_many_first_deliveries_to_a_token_at_once_make_one_session_and_lose_none():
    async with Holdfast([greeter()], store="memory://") as app:
        sent = [app.deliver("thread-2", f"Hi {n}", agent="greeter") for n in range(10)]
        receipts = await asyncio.gather(*sent)
        assert len({receipt.session_id for receipt in receipts}) == 1
        assert len({receipt.delivery_id for receipt in receipts}) == 10
        results = await asyncio.gather(*(receipt.result() for receipt in receipts))
        assert {result.status for result in results} == {"completed"}


@pytest.fixture(params=["memory://", "sqlite:///lanes.db"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return request.param


async def test_lanes_that_work_at_once_see_all_that_the_others_have_kept(store):
    @tool
    async def note(ctx: Context, cents: int) -> str:
        """Note."""
        ctx.session.append(Budget(cents))
        return "noted"

    def script(request):
        notes = sum("noted" in str(message) for message in request.view.messages)
        return calls(("note", {"cents": notes})) if notes < 10 else say("Done.")

    agent = Agent("noter", ScriptedModel(script), tools=[note])
    app = Holdfast([agent], store=store)
    async with app:
        session = await app.start(agent, "Go")
        for lane in ("left", "right"):
            await session.send("Go", lane=lane)
        await session.wait()
        assert len((await session.query(Budget)).all()) == 30
        await session.end()
        await session.wait()
        assert await verify(app.store, session.id) == []


async def test_the_end_of_a_session_reaches_a_lane_that_waits_for_a_human(store):
    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("payer", ScriptedModel([calls(("pay", {})), say("Paid.")]), tools=[pay])
    async with Holdfast([agent], store=store) as app:
        session = await app.start(agent, "Go", lane="side")
        assert (await session.wait()).status == "waiting"
        queued = await session.send("And then?", lane="side")
        await session.end("enough")
        assert (await queued.result()).status == "refused"
        kinds = [event.type async for event in session.events(follow=False)]
        assert "turn.cancelled" in kinds
        assert await session.requests() == ()
        assert await verify(app.store, session.id) == []
