"""Workflows made by chance, of every kind of step and wait, whose bodies change while they run.

A program is a list of operations. Under each edition of the code some of them are gone, some are
new, and others have changed places; what undoes something keeps its place. What a step does depends
on the run, the step and how often it was done, so that a simulation can be repeated.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from msgspec import Struct

from outlast.agents.runtime.step import NotDone, StepRemedy
from outlast.errors import EventTimeout, RunFailed, StepError, StepInterrupted, ToolError
from outlast.store import Transaction
from outlast.testing.simulation.history import DeedDone, History
from outlast.testing.simulation.ledger import SQL
from outlast.testing.simulation.random_answer import chance_of
from outlast.workflows.context import WorkflowContext
from outlast.workflows.workflow import Workflow, workflow

EVENT, RIVALS = "go", " rival "
LEAN = -1
"""The edition that has only what undoes something: any run comes to its end on it."""
PLAIN = ("step", "rerun", "read", "ask", "find_out", "reserve", "moody", "hurry")
WAITS = ("nap", "now", "late", "event", "rivals", "question")
INNER = ("gather", "first", "map")
CHILDREN = ("child", "careful")
EDITION: ContextVar[int] = ContextVar("EDITION")
"""The code that this body runs: `RandomWorkflows.edition` may have changed since it began."""


class Operation(Struct, frozen=True):
    """One thing that a body does. Of `inner` ones several go on at once."""

    kind: str
    number: int
    inner: tuple[Operation, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether it stands in every edition: what it registers may have to be undone."""
        return self.kind == "undo" or any(each.is_fixed for each in self.inner)


class RandomWorkflows:
    """The workflows of one simulation; `edition` is the code that bodies run from now on."""

    def __init__(self, seed: int, history: History) -> None:
        self.edition = 0
        self._seed = seed
        self._history = history
        self._done: Counter[tuple[str, str]] = Counter()
        self._numbers = 0
        chance = self._chance = chance_of(seed, "program")
        self._program = [self._operation(2) for _ in range(chance.randint(3, 7))]
        self._fails = chance.random() < 0.4

    def _operation(self, depth: int) -> Operation:
        self._numbers += 1
        number, kinds = self._numbers, [*PLAIN, *WAITS, *CHILDREN, "undo", "undo", "undo"]
        kind = self._chance.choice(kinds + [*INNER, *INNER] * (depth > 0))
        pair = kind in ("gather", "first")
        inner = tuple(self._operation(depth - 1) for _ in range(2)) if pair else ()
        return Operation(kind, number, inner)

    async def change_repeatedly(self) -> None:
        """Deploy other code, now and then."""
        chance = chance_of(self._seed, "editions")
        while True:
            await asyncio.sleep(chance.uniform(2.0, 30.0))
            self.edition = chance.randrange(6)

    def _body(self) -> Sequence[Operation]:
        """Return the program as it is now."""
        chance, edition = chance_of(self._seed, "edition", self.edition), self.edition
        if not edition:
            return self._program
        found = [op for op in self._program if op.is_fixed]
        if edition == LEAN:
            return found
        loose = [op for op in self._program if not op.is_fixed and chance.random() < 0.8]
        for number in range(chance.randrange(3)):
            kind = chance.choice([*PLAIN, *WAITS, "map"])
            loose.append(Operation(kind, 1000 * edition + number))
        for op in loose:
            found.insert(chance.randint(0, len(found)), op)
        return found

    def workflows(self) -> list[Workflow[Any, Any]]:
        @workflow
        async def program(ctx: WorkflowContext, number: int) -> int:
            EDITION.set(self.edition)
            for op in self._body():
                await self._do(ctx, op)
            if self._fails and number % 3:
                raise ValueError("it fails in the end")
            return number

        @workflow
        async def child(ctx: WorkflowContext, number: int) -> int:
            await self._deed(ctx, f"before {number}")
            await ctx.sleep(2.0)
            if number % 4 == 0:
                raise ValueError(f"{number} is bad")
            return await self._deed(ctx, f"after {number}")

        @workflow
        async def careful(ctx: WorkflowContext, number: int) -> int:
            return await self._deed(ctx, f"careful {number}", on_interrupt="fail")

        return [program, child, careful]

    async def _do(self, ctx: WorkflowContext, op: Operation) -> Any:
        return await getattr(self, f"_{op.kind}")(ctx, op)

    # Steps

    async def _deed(self, ctx: WorkflowContext, what: str, **rules: Any) -> int:
        """Do something that the world outside sees, in a step of that name."""

        async def do() -> int:
            await self._happen(ctx.id, what)
            return len(what)

        with suppress(StepInterrupted, StepError):
            return await ctx.step(do, name=what, **rules)
        return 0

    async def _happen(self, run: str, what: str) -> None:
        self._done[run, what] += 1
        chance = chance_of(self._seed, run, what, self._done[run, what])
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.5, 4.0]))
        self._history.note(DeedDone, session_id=run, what=what)
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.5]))
        if "moody" in what and chance.random() < 0.5:
            raise ToolError("not now")

    async def _step(self, ctx: WorkflowContext, op: Operation) -> int:
        return await self._deed(ctx, f"step {op.number}")

    async def _rerun(self, ctx: WorkflowContext, op: Operation) -> int:
        return await self._deed(ctx, f"rerun {op.number}", on_interrupt="rerun")

    async def _read(self, ctx: WorkflowContext, op: Operation) -> int:
        return await self._deed(ctx, f"read {op.number}", readonly=True)

    async def _ask(self, ctx: WorkflowContext, op: Operation) -> int:
        return await self._deed(ctx, f"asked {op.number}", on_interrupt="ask")

    async def _moody(self, ctx: WorkflowContext, op: Operation) -> int:
        return await self._deed(ctx, f"moody {op.number}", max_attempts=3)

    async def _hurry(self, ctx: WorkflowContext, op: Operation) -> int:
        return await self._deed(ctx, f"hurry {op.number}", timeout=0.3)

    async def _find_out(self, ctx: WorkflowContext, op: Operation) -> int:
        what = f"found {op.number}"
        return await self._deed(ctx, what, on_interrupt=self._looks(ctx.id, what, len(what)))

    def _looks(self, run: str, what: str, value: Any) -> StepRemedy:
        def look() -> Any:
            done = self._history.of(DeedDone)
            is_done = any((each.session_id, each.what) == (run, what) for each in done)
            return value if is_done else NotDone

        return look

    async def _reserve(self, ctx: WorkflowContext, op: Operation) -> int:
        run, what = ctx.id, f"reserve {op.number}"

        async def do(tx: Transaction) -> int:
            await tx.execute(SQL["purchase"], (run, what, ""))
            await asyncio.sleep(chance_of(run, what).choice([0.0, 0.01, 0.5]))
            return 1

        with suppress(StepError):
            return await ctx.step(do, name=what, transactional=True)
        return 0

    async def _undo(self, ctx: WorkflowContext, op: Operation) -> int:
        run, what = ctx.id, f"undo {op.number}"

        async def undo() -> None:
            await self._happen(run, what)

        ctx.on_undo(undo, name=what, on_interrupt=self._looks(run, what, None))
        return await self._deed(ctx, f"done {op.number}")

    # Waits

    async def _nap(self, ctx: WorkflowContext, op: Operation) -> None:
        await ctx.sleep(op.number % 5 * 4.0, name=f"nap {op.number}")

    async def _now(self, ctx: WorkflowContext, op: Operation) -> bool:
        first, chance = ctx.now(), ctx.random()
        ctx.emit(f"seen {op.number}", op.number)
        await ctx.sleep(1.0, name=f"now {op.number}")
        return first <= ctx.now() and 0 <= chance < 1

    async def _late(self, ctx: WorkflowContext, op: Operation) -> bool:
        try:
            await ctx.wait_event(f"never {op.number}", timeout=5.0)
        except EventTimeout:
            return True
        return False

    async def _event(self, ctx: WorkflowContext, op: Operation) -> int:
        got: int = await ctx.wait_event(EVENT, kind=int)
        ctx.emit("got", (EDITION.get(), got))
        return got

    async def _rivals(self, ctx: WorkflowContext, op: Operation) -> None:
        """Wait twice for an event of one name: the branch that loses takes none."""
        waits = {f"{op.number}{RIVALS}{n}": ctx.wait_event(EVENT, kind=int) for n in range(2)}
        ctx.emit("got", (EDITION.get(), (await ctx.first(**waits)).value))

    async def _question(self, ctx: WorkflowContext, op: Operation) -> str:
        return (await ctx.ask("Well?", ["yes", "no"], name=f"question {op.number}")).option

    async def _child(self, ctx: WorkflowContext, op: Operation) -> int:
        with suppress(RunFailed):
            return await ctx.run("child", op.number)
        return 0

    async def _careful(self, ctx: WorkflowContext, op: Operation) -> int:
        with suppress(RunFailed):
            return await ctx.run("careful", op.number)
        return 0

    # Several at once

    async def _gather(self, ctx: WorkflowContext, op: Operation) -> None:
        await ctx.gather(**{f"of {each.number}": self._do(ctx, each) for each in op.inner})

    async def _first(self, ctx: WorkflowContext, op: Operation) -> str:
        # Each by a name of its own: another edition may have fewer of these before it.
        return (
            await ctx.first(**{f"{op.number} {o.number}": self._do(ctx, o) for o in op.inner})
        ).name

    async def _map(self, ctx: WorkflowContext, op: Operation) -> int:
        async def one(item: int) -> int:
            await ctx.sleep(float(item))
            return await self._deed(ctx, f"item {op.number} {item}")

        edition = EDITION.get()
        items = [n for n in range(4) if edition == 0 or (n + edition) % 3]
        if edition == LEAN:
            # An item that the run has not done, because the code of then had none such, would keep
            # the undo from coming to what is registered after the map, whatever edition that was.
            items = []
        return sum(await ctx.map(one, items, concurrency=2, name=f"map {op.number}"))
