"""A tool that asks in the middle of its work, and waits for as long as it takes.

A tool that waits is run again from its first line when it wakes: Python cannot go on inside
a function whose process is gone. Answered waits return at once; put effects before
a wait into `ctx.step`, which does them once and records the result.
"""

import asyncio
from datetime import timedelta

from outlast import Agent, Context, Outlast, tool
from outlast.testing import ScriptedModel, call, say

trace: list[str] = []


def reserve(room: str) -> str:
    trace.append("reserved")
    return f"{room}-0042"


@tool
async def book(ctx: Context, room: str) -> str:
    """Book a room, if the guest likes the price."""
    trace.append("first line")
    number = await ctx.step(reserve, room, name="reserve")
    answer = await ctx.ask(f"{number} costs 90 €. Take it?", ["yes", "no"], allow_freeform=False)
    if answer.option == "no":
        return "not booked"
    await ctx.sleep(timedelta(milliseconds=50))  # or days; nothing runs meanwhile
    trace.append("booked")
    return f"booked {number}"


def new_app() -> Outlast:
    model = ScriptedModel([call("book", room="blue"), say("Your room is booked."), say("Yes!")])
    return Outlast([Agent("hotel", model, tools=[book])], store="sqlite:///hotel.db")


async def main() -> None:
    async with new_app() as app:
        session = await app.start("hotel", "The blue room, please")
        [request] = (await session.wait()).requests
        print(request.prompt)
        await session.send("Hello? Is anybody there?")  # a message, never an answer
        # It waits in the queue; the answer goes ahead of it.

    async with new_app() as app:  # another process, another day
        session = await app.session(session.id)
        receipt = await session.answer(request, "yes")
        print((await receipt.result()).unwrap())
        print(trace)
    assert trace == ["first line", "reserved", "first line", "first line", "booked"]


asyncio.run(main())
