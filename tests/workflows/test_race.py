"""A branch that has lost, or that another's error has ended, takes nothing that was kept."""

from typing import Any

import pytest
from scene import running, until

from outlast import Outlast, Run, WorkflowContext, workflow
from outlast.errors import ToolError


async def with_events(app: Outlast, *names: str) -> Run[Any]:
    """A run that is let go on when all these events have come."""
    run: Run[Any] = await app.run("race")
    request = (await run.wait()).requests[0]
    for name in names:
        await run.send_event(name, f"{name} came")
    await until(await app.session(run.id), "event.received", len(names), internals=True)
    await run.answer(request.request_id, "yes")
    return run


async def test_the_event_of_a_branch_that_ends_in_the_same_pass_as_the_first_is_kept() -> None:
    @workflow
    async def race(ctx: WorkflowContext) -> list[str]:
        await ctx.ask("Begin?", ["yes"])
        first = await ctx.first(x=ctx.wait_event("x"), y=ctx.wait_event("y"))
        return [first.value, await ctx.wait_event("x" if first.name == "y" else "y")]

    async with running(race) as app:
        run = await with_events(app, "x", "y")

        assert (await run.wait()).unwrap() == ["x came", "y came"]


async def test_of_two_waits_for_one_event_the_one_that_lost_takes_none() -> None:
    @workflow
    async def race(ctx: WorkflowContext) -> list[str]:
        await ctx.ask("Begin?", ["yes"])
        await ctx.first(a=ctx.wait_event("go"), b=ctx.wait_event("go"))
        await ctx.sleep(0.001)
        return [await ctx.wait_event("go"), await ctx.wait_event("end")]

    async with running(race) as app:
        run = await with_events(app, "go", "go", "end")

        assert (await run.wait()).unwrap() == ["go came", "end came"]


async def test_branches_within_a_branch_that_lost_take_no_event_either() -> None:
    @workflow
    async def race(ctx: WorkflowContext) -> list[str]:
        await ctx.ask("Begin?", ["yes"])
        within = ctx.gather(ctx.wait_event("y"), ctx.wait_event("never"))
        first = await ctx.first(within=within, x=ctx.wait_event("x"))
        return [first.name, await ctx.wait_event("y")]

    async with running(race) as app:
        run = await with_events(app, "x", "y")

        assert (await run.wait()).unwrap() == ["x", "y came"]


@pytest.mark.parametrize("kind", ["gather", "map"])
async def test_an_error_of_a_branch_leaves_the_events_of_those_that_it_ends(kind: str) -> None:
    @workflow
    async def race(ctx: WorkflowContext) -> str:
        await ctx.ask("Begin?", ["yes"])

        async def one(name: str) -> Any:
            if name == "fails":
                raise ToolError("no")
            return await ctx.wait_event(name)

        in_map = kind == "map"
        both = ctx.map(one, ["fails", "y"]) if in_map else ctx.gather(one("fails"), one("y"))
        with pytest.raises(ToolError):
            await both
        return str(await ctx.wait_event("y"))

    async with running(race) as app:
        run = await with_events(app, "y")

        assert (await run.wait()).unwrap() == "y came"
