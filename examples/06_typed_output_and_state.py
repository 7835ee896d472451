"""A typed answer, and state that the session keeps."""

import asyncio

from pydantic import BaseModel

from outlast import Agent, Context, InstructionContext, Outlast, tool
from outlast.testing import ScriptedModel, call


class Trip(BaseModel):
    city: str
    nights: int


class Wish(BaseModel):
    text: str


class Budget(BaseModel):
    cents: int = 10_000


@tool(idempotent=True)
async def remember(ctx: Context, wish: str, costs: int) -> int:
    """Keep a wish in mind; return what is left of the budget."""
    ctx.session.mutate(Wish).append(Wish(text=wish))
    budget = ctx.session.mutate(Budget)
    return budget.update(lambda b: Budget(cents=(b or Budget()).cents - costs)).cents


async def instructions(ctx: InstructionContext) -> str:
    wishes = ", ".join(wish.text for wish in ctx.session.query(Wish).all())
    return f"You plan trips. Known wishes: {wishes or 'none'}."


told: list[str] = []
model = ScriptedModel(
    [
        call("remember", wish="a view", costs=3000),
        call("final_result", city="Bergen", nights="many"),  # does not fit: asked to correct it
        call("final_result", city="Bergen", nights=2),
    ],
    on_request=lambda request: told.append(request.instructions),
)
planner = Agent("planner", model, instructions=instructions, tools=[remember], output_type=Trip)


async def main() -> None:
    async with Outlast([planner], store="sqlite:///trip.db") as app:
        session = await app.start(planner, "A trip with a view, please", mode="task")
        trip = (await session.wait()).unwrap()  # a Trip, or SessionError is raised
        print(trip, "-", told[-1])
        kept = await session.query(Wish).all(), await session.query(Budget).latest()
        assert (trip.nights, *kept) == (2, [Wish(text="a view")], Budget(cents=7000))
        assert told[-1].endswith("Known wishes: a view.")


asyncio.run(main())
