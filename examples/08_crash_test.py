"""Find the tool that does something twice: crash at every commit and look at the ledger."""

import asyncio

from outlast import Agent, Context, Outlast, tool
from outlast.testing import Ledger, ScriptedModel, call, crash_everywhere, say

ledger = Ledger()


@tool(idempotent=True)  # it says so, but it is not
async def charge_carelessly(order: int) -> str:
    """Take the money."""
    ledger.record("charged", order=order)
    return "paid"


@tool(idempotent=True)  # true: the bank knows the key, however often it is called
async def charge(ctx: Context, order: int) -> str:
    """Take the money."""
    ledger.record("charged", order=order, idempotency_key=ctx.idempotency_key)
    return "paid"


def shop(tool_name: str) -> Agent:
    model = ScriptedModel([call(tool_name, order=17), say("Order 17 is paid.")])
    return Agent("shop", model, tools=[charge_carelessly, charge])


async def buy(app: Outlast) -> str | None:
    session = await app.start("shop", "I take order 17")
    return (await session.wait()).output


async def main() -> None:
    careless = await crash_everywhere(buy, agents=[shop("charge_carelessly")], ledger=ledger)
    print("the careless tool:", careless)

    careful = await crash_everywhere(buy, agents=[shop("charge")], ledger=ledger)
    careful.assert_no_effect_repeated()
    careful.assert_nothing_lost()
    careful.assert_same_output()
    print("the careful tool:", careful)


if __name__ == "__main__":
    asyncio.run(main())
