"""What happens at the same time: updates of one slice, deliveries to one token."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast import Agent, Context, Holdfast, tool
from holdfast.errors import DispatchConflict
from holdfast.testing import ScriptedModel, calls, say


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
