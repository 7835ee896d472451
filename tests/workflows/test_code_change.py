"""The code of a body changes under live runs: what still fits goes on, and nothing else does."""

import random
from typing import Any

import pytest
from scene import running, until

from outlast import Run, WorkflowContext, workflow
from outlast.stores.sqlite import MemoryStore


class Deeds:
    def __init__(self) -> None:
        self.done: list[str] = []

    async def do(self, what: str) -> str:
        self.done.append(what)
        return what

    async def else_(self, what: str) -> str:
        self.done.append(f"else {what}")
        return what


async def deploy(store: Any, first: Any, second: Any) -> tuple[Run[Any], Any]:
    """A run of `first` that waits for a human, and is answered under the code of `second`."""
    async with running(first, store=store) as app:
        run: Run[Any] = await app.run("flow")
        waiting = await run.wait()
        request = waiting.requests[0].request_id
    return run, (run.id, request)


async def test_a_step_whose_arguments_have_changed_parks_the_run_until_code_comes_that_fits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, deeds = MemoryStore(), Deeds()

    def version(what: str) -> Any:
        @workflow(name="flow")
        async def flow(ctx: WorkflowContext) -> str:
            ctx.on_undo(deeds.do, "undo")
            done = await ctx.step(deeds.do, what)
            await ctx.ask("Go on?", ["yes"])
            return done

        return flow

    async with running(version("a"), store=store) as app:
        run: Run[Any] = await app.run("flow")
        request = (await run.wait()).requests[0]
    async with running(version("b"), store=store) as app:
        run = await app.get_run(run.id)
        await run.answer(request.request_id, "yes")
        session = await app.session(run.id)
        [event] = [await until(session, "tool.mismatched")]
        await until(session, "session.waiting", 2)

        assert event.data["error"]["code"] == "REPLAY_MISMATCH"
        assert "Deeds.do" in event.data["error"]["message"]
        assert "ctx.patched" in event.data["error"]["message"]
        assert await run.status() == "waiting"
        assert "code" in (await run.info()).lanes[0].wait
        assert "does not fit" in caplog.text
        assert "waits for code that fits" in str(await run.explain())
        assert deeds.done == ["a"]
    async with running(version("a"), store=store) as app:
        run = await app.get_run(run.id)
        assert (await run.wait()).unwrap() == "a"
        assert deeds.done == ["a"]


async def test_a_named_step_is_the_same_whatever_its_arguments_are() -> None:
    store, deeds = MemoryStore(), Deeds()

    def version(what: str) -> Any:
        @workflow(name="flow")
        async def flow(ctx: WorkflowContext) -> str:
            done = await ctx.step(deeds.do, what, name="it")
            await ctx.ask("Go on?", ["yes"])
            return f"{done} {await ctx.step(deeds.do, what)}"

        return flow

    async with running(version("a"), store=store) as app:
        run: Run[Any] = await app.run("flow")
        request = (await run.wait()).requests[0]
    async with running(version("b"), store=store) as app:
        run = await app.get_run(run.id)
        await run.answer(request.request_id, "yes")
        assert (await run.wait()).unwrap() == "a b"


async def test_a_run_that_had_gone_past_a_patch_keeps_to_the_old_way_for_good() -> None:
    store, deeds = MemoryStore(), Deeds()

    @workflow(name="flow")
    async def old(ctx: WorkflowContext) -> str:
        await ctx.step(deeds.do, "a")
        await ctx.ask("Go on?", ["yes"])
        return "old"

    @workflow(name="flow")
    async def new(ctx: WorkflowContext) -> str:
        first = ctx.patched("first")
        if first:
            await ctx.step(deeds.do, "b")
        await ctx.step(deeds.do, "a")
        await ctx.ask("Go on?", ["yes"])
        last = ctx.patched("last")
        await ctx.sleep(0.001)
        return f"{first} {last} {ctx.patched('first')}"

    async with running(old, store=store) as app:
        run: Run[Any] = await app.run("flow")
        request = (await run.wait()).requests[0]
    async with running(new, store=store) as app:
        run = await app.get_run(run.id)
        await run.answer(request.request_id, "yes")
        assert (await run.wait()).unwrap() == "False True False"
        fresh: Run[Any] = await app.run("flow")
        await fresh.answer((await fresh.wait()).requests[0].request_id, "yes")
        assert (await fresh.wait()).unwrap() == "True True True"
        assert deeds.done == ["a", "b", "a"]


@pytest.mark.parametrize("seed", range(12))
async def test_no_step_is_repeated_or_given_to_another_however_the_body_is_edited(
    seed: int,
) -> None:
    """Steps are named, and added, removed and reordered between parks; some in branches."""
    chance, deeds, store = random.Random(seed), Deeds(), MemoryStore()
    names = list("abcdefgh")

    def version(plan: list[list[str]], rounds: int) -> Any:
        @workflow(name="flow")
        async def flow(ctx: WorkflowContext) -> list[str]:
            found: list[str] = []
            for number in range(rounds):
                for group in plan:
                    if len(group) == 1:
                        found.append(await step(ctx, group[0]))
                    else:
                        some = await ctx.gather(**{each: step(ctx, each) for each in group})
                        found += some.values()
                await ctx.ask("Go on?", ["yes"], name=f"round {number}")
            return found

        return flow

    async def step(ctx: WorkflowContext, name: str) -> str:
        return await ctx.step(deeds.do, f"{name}{len(deeds.done)}", name=name)

    def plan() -> list[list[str]]:
        chosen = chance.sample(names, chance.randint(1, len(names)))
        groups: list[list[str]] = []
        while chosen:
            size = chance.choice([1, 1, 2, 3])
            groups.append(chosen[:size])
            chosen = chosen[size:]
        return groups

    run_id, rounds = "", 4
    for number in range(rounds):
        async with running(version(plan(), rounds), store=store) as app:
            run: Run[Any] = await (app.get_run(run_id) if run_id else app.run("flow"))
            run_id = run.id
            [request] = (await run.wait()).requests
            await run.answer(request.request_id, "yes")
            if number == rounds - 1:
                result = await run.wait()
                assert result.status == "completed"
                # A result is of the step that it is given to.
                assert {each[0] for each in result.unwrap()} <= set(names)
                session = await app.session(run_id)
                events = [e async for e in session.events(internals=True, follow=False)]
                recorded = [e.data["name"] for e in events if e.type == "tool.step_recorded"]
                assert len(recorded) == len(set(recorded)) == len(deeds.done)
                by_name = {e.data["name"]: e.data["value"] for e in events if "step_rec" in e.type}
                assert all(f":{value[0]}#" in name for name, value in by_name.items())
