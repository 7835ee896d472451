"""A call that waits for a human's yes. The session waits in the database, not in a process."""

import asyncio

from outlast import Agent, Context, Outlast, tool
from outlast.testing import ScriptedModel, calls, say

paid: list[tuple[str, int, str]] = []


def is_much(args: dict[str, int]) -> bool:
    return args["cents"] > 1000


@tool(approval=is_much)  # or "always", or "once" per session and arguments
async def refund(ctx: Context, order: str, cents: int) -> str:
    """Give money back."""
    paid.append((order, cents, ctx.approved_by))
    return f"refunded {cents} cents"


orders = [("A", 500), ("B", 9900), ("C", 4200)]
wanted = [("refund", {"order": order, "cents": cents}) for order, cents in orders]
model = ScriptedModel([calls(*wanted), say("A and B are refunded, C is not.")])
support = Agent("support", model, tools=[refund])


def new_app() -> Outlast:
    return Outlast([support], store="sqlite:///approval.db")


async def main() -> None:
    async with new_app() as app:
        session = await app.start(support, "Refund A, B and C")
        result = await session.wait()
    # A needed no approval and ran at once; B and C wait, and no process has to run meanwhile.
    assert result.status == "waiting"
    assert paid == [("A", 500, "")]

    async with new_app() as app:  # next week, elsewhere
        session = await app.session(session.id)
        for request in await session.requests():
            print(request.prompt, request.args)
            if request.args["order"] == "B":  # changed arguments are checked again
                args = {"order": "B", "cents": 5000}
                await session.answer(request, "approve", args=args, principal="ann")
            else:
                await session.answer(request, "deny", text="too old", principal="ann")
        result = await session.wait()
    print(result.output, paid)
    assert paid == [("A", 500, ""), ("B", 5000, "ann")]


asyncio.run(main())
