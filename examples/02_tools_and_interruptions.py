"""Each tool says what an interruption means for it; here a timeout stands for a crash."""

import asyncio

from outlast import Agent, Context, NotDone, Outlast, tool
from outlast.testing import ScriptedModel, calls, say

ran: list[str] = []


async def hang_at_first(name: str) -> str:
    ran.append(name)
    if ran.count(name) == 1:
        await asyncio.sleep(60)
    return f"{name} done"


@tool(readonly=True, timeout=0.2)  # changes nothing: it is simply run again
async def look_up() -> str:
    return await hang_at_first("look_up")


@tool(timeout=0.2)  # says nothing: never repeated, the model hears "outcome unknown"
async def send_mail() -> str:
    return await hang_at_first("send_mail")


@tool(on_interrupt="ask", timeout=0.2)  # a human decides
async def ship_parcel() -> str:
    return await hang_at_first("ship_parcel")


async def find_charge(ctx: Context, args: dict[str, object]) -> str | type[NotDone]:
    return "charged before" if "charge" in ran else NotDone  # would ask the bank


@tool(on_interrupt=find_charge, timeout=0.2)  # the outside world knows
async def charge() -> str:
    return await hang_at_first("charge")


tools = [look_up, send_mail, ship_parcel, charge]
model = ScriptedModel([calls(*((tool.name, {}) for tool in tools)), say("That is all.")])
clerk = Agent("clerk", model, tools=tools)


async def main() -> None:
    async with Outlast([clerk], store="sqlite:///tools.db") as app:
        session = await app.start(clerk, "Do all of it")
        asked = (await session.wait()).requests[0]
        print(asked.prompt, [option.id for option in asked.options])
        await session.answer(asked, "done", text="parcel 7 is on its way")
        await session.wait()
        for result in getattr((await session.history())[2], "results", ()):
            print(f"{result.tool:12} {result.text[:60]}")
    assert ran == ["look_up", "send_mail", "ship_parcel", "charge", "look_up"]


asyncio.run(main())
