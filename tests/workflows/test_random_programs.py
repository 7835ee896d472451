"""Random workflows of every kind of step and wait, whose workers die at random commits."""

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outlast import NotDone, Outlast, Run, Workflow, WorkflowContext, workflow
from outlast.errors import EventTimeout, RunFailed, StepError, StepInterrupted
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.crash import CrashPoint
from outlast.testing.crash_everywhere import UNDISTURBED, CrashRun
from outlast.testing.ledger import Ledger, watch

SEEDS, KILLS, EVENTS = [1, 4, 7, 19, 33, 52], 2, 6
Op = Callable[[WorkflowContext], Awaitable[Any]]


class Program:
    """A workflow that is the same whenever it is made of the same seed."""

    def __init__(self, seed: int, ledger: Ledger) -> None:
        self._chance = random.Random(seed)
        self._ledger = ledger
        self._number = 0
        self.events = 0
        self.undos = 0
        self.ops = [self._op(2) for _ in range(self._chance.randint(3, 6))]
        self.fails = self._chance.random() < 0.5

    def workflows(self) -> list[Workflow[Any, Any]]:
        @workflow
        async def program(ctx: WorkflowContext) -> list[Any]:
            found = [await op(ctx) for op in self.ops]
            if self.fails:
                raise ValueError("it fails in the end")
            return found

        @workflow
        async def child(ctx: WorkflowContext, number: int) -> int:
            await ctx.sleep(0.001)
            if number % 3 == 0:
                raise ValueError(f"{number} is bad")
            return await self._effect(ctx, f"child {number}")

        return [program, child]

    def _op(self, depth: int) -> Op:
        self._number += 1
        number, chance = self._number, self._chance
        kinds = ["step", "rerun", "fails", "sleep", "run", "undo", "now", "late"]
        kinds += ["event"] * (self.events < EVENTS and depth == 2)
        kinds += ["gather", "first", "map"] * (depth > 0)
        kind = chance.choice(kinds)
        if kind == "event":
            self.events += 1
        self.undos += kind == "undo"
        inner = [self._op(depth - 1) for _ in range(2)] if kind in ("gather", "first") else []

        async def op(ctx: WorkflowContext) -> Any:
            return await getattr(self, f"_{kind}")(ctx, number, inner)

        return op

    async def _effect(self, ctx: WorkflowContext, what: str) -> int:
        def do() -> int:
            self._ledger.record(what)
            return len(what)

        try:
            return await ctx.step(do, name=what)
        except StepInterrupted:
            return len(what)

    async def _step(self, ctx: WorkflowContext, number: int, _: list[Op]) -> int:
        return await self._effect(ctx, f"step {number}")

    async def _rerun(self, ctx: WorkflowContext, number: int, _: list[Op]) -> str:
        return await ctx.step(str, number, on_interrupt="rerun")

    async def _fails(self, ctx: WorkflowContext, number: int, _: list[Op]) -> str:
        def fail() -> None:
            raise ConnectionError(f"{number} is away")

        try:
            await ctx.step(fail, name=f"fail {number}", max_attempts=1, on_interrupt="rerun")
        except StepError as error:
            return str(error)
        return "did not fail"

    async def _sleep(self, ctx: WorkflowContext, number: int, _: list[Op]) -> None:
        await ctx.sleep(0.001)

    async def _run(self, ctx: WorkflowContext, number: int, _: list[Op]) -> Any:
        try:
            return await ctx.run("child", number)
        except RunFailed as error:
            return str(error)

    async def _undo(self, ctx: WorkflowContext, number: int, _: list[Op]) -> int:
        def undo() -> None:
            self._ledger.record(f"undo {number}", idempotency_key=f"{number}")

        def find_out() -> Any:
            done = {effect.what for effect in self._ledger.effects}
            return None if f"undo {number}()" in done else NotDone

        ctx.on_undo(undo, name=f"undo {number}", on_interrupt=find_out)
        return await self._effect(ctx, f"done {number}")

    async def _now(self, ctx: WorkflowContext, number: int, _: list[Op]) -> bool:
        first, chance = ctx.now(), ctx.random()
        ctx.emit("seen", number)
        await ctx.sleep(0.001)
        return first <= ctx.now() and 0 <= chance < 1

    async def _late(self, ctx: WorkflowContext, number: int, _: list[Op]) -> str:
        try:
            await ctx.wait_event(f"never {number}", timeout=0.001)
        except EventTimeout:
            return "late"
        return "came"

    async def _event(self, ctx: WorkflowContext, number: int, _: list[Op]) -> Any:
        return await ctx.wait_event("go")

    async def _gather(self, ctx: WorkflowContext, number: int, inner: list[Op]) -> Any:
        return list(await ctx.gather(*(op(ctx) for op in inner)))

    async def _first(self, ctx: WorkflowContext, number: int, inner: list[Op]) -> str:
        async def never() -> None:
            await ctx.wait_event(f"never {number}")

        return (await ctx.first(one=inner[0](ctx), never=never())).name

    async def _map(self, ctx: WorkflowContext, number: int, _: list[Op]) -> list[int]:
        async def one(item: int) -> int:
            await ctx.sleep(0.001)
            return await self._effect(ctx, f"item {number} {item}")

        return await ctx.map(one, [1, 2, 1], concurrency=2, name=f"map {number}")


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_death_of_a_worker_changes_what_a_program_does(seed: int) -> None:
    ledger = Ledger()
    program = Program(seed, ledger)

    async def scenario(app: Outlast) -> Any:
        run: Run[Any] = await app.run("program")
        for number in range(program.events):
            await run.send_event("go", number)
        result = await run.wait()
        assert await verify(app.store, run.id) == []
        return result.status, result.output, result.error and result.error.message

    flows = watch(program.workflows(), ledger)
    rehearsal = CrashRun(scenario, flows, ledger, None, MemoryStore, 20.0, {})
    undisturbed, commits = await rehearsal.run(UNDISTURBED)
    expected = [effect.what for effect in undisturbed.effects]
    chance = random.Random(seed)
    for _ in range(KILLS):
        point = CrashPoint(chance.randint(1, commits), chance.choice(["before", "after"]))
        crashed, _ = await rehearsal.run(point)
        effects = [effect.what for effect in crashed.effects]

        assert (crashed.error, crashed.output) == ("", undisturbed.output), f"{seed}, {point}"
        assert Counter(effects) <= Counter(expected), f"{seed}, {point}"
        undone = [what for what in effects if what.startswith("undo")]
        assert undone == [w for w in expected if w.startswith("undo")], f"{seed}, {point}"
