"""Where a tool's waits stand: named so that every run finds them, known by what they came to.

A tool that has to wait is unwound by `Parked`, and run again from its first line when it
wakes; a wait that is over returns at once then. One that does several things at once stops when
each of its tasks has to wait, and wakes when the first of these waits is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from hashlib import blake2b
from math import ceil, log2
from typing import Any

from msgspec import Struct

from holdfast.core.lane import Call, Lane
from holdfast.core.name import PAUSE
from holdfast.core.result import Wait, Waits
from holdfast.engine.performer import Desk

ROUNDS = 20
"""Of the event loop, in which a task's end reaches those who wait for it: two for each level."""


A_MILLISECOND = timedelta(milliseconds=1)

_steps_around: ContextVar[tuple[asyncio.Future[None], ...]] = ContextVar("steps", default=())


class Parked(BaseException):
    """Unwinds a tool that waits. Private, and not an Exception: tools cannot swallow it."""

    def __init__(self, waiting: Waiting) -> None:
        super().__init__("the tool waits")
        self.waiting = waiting


class Course(Struct):
    """What one task of a tool waits for, one after the other: `count` waits up to now."""

    name: str
    count: int = 0


class Waiting:
    """The waits of one run of a call. It `is_parked` when it has been unwound at one.

    Waits that follow one another are told apart by their order. Tasks that a tool starts may
    come in another order each time: each is known by what it waits for first.
    """

    def __init__(self, call: Call, desk: Desk) -> None:
        self.call_id = call.call_id
        self.desk = desk
        self.is_parked = False
        self._reconciles = 0
        self._begin("")
        self._stopped: dict[asyncio.Task[Any] | None, Wait] = {}
        self._steps: set[asyncio.Future[None]] = set()

    @property
    def lane(self) -> Lane:
        return self.desk.lane

    @property
    def waits(self) -> Waits:
        """What the call waits for, once it is parked."""
        named = {wait.name: wait for wait in self._stopped.values()}
        return Waits(self.call_id, tuple(named.values()), self._reconciles)

    def _begin(self, name: str) -> None:
        main = asyncio.current_task()
        self._courses: dict[asyncio.Task[Any] | None, Course] = {main: Course(name)}

    @contextmanager
    def finding_out(self, attempt: int) -> Iterator[None]:
        """Wait, meanwhile, for what finds out about an attempt: these waits are none of the tool's.

        Another attempt about which nothing is known is another question.
        """
        self._reconciles = attempt
        self._begin(f"reconcile{attempt}.")
        yield
        self._reconciles = 0
        self._begin("")

    def next(self, kind: str, about: str = "") -> tuple[str, str | None]:
        """Name the next wait of this task, and return what it has come to, if it has.

        What it is `about` has to be the same in every run where tasks are told apart by it.
        """
        course = self._course(kind, about)
        course.count += 1
        name = f"{kind}:{course.name}{course.count}"
        return name, self.come_since(name)

    def _course(self, kind: str, about: str) -> Course:
        task = asyncio.current_task()
        if task not in self._courses:
            said = f"{kind}\n{about}".encode(errors="surrogatepass")
            first = blake2b(said, digest_size=10).hexdigest()
            twins = sum(each.name.startswith(first) for each in self._courses.values())
            self._courses[task] = Course(f"{first}.{twins + 1}.")
        return self._courses[task]

    @property
    def _call(self) -> Call:
        """The call as it is now, for a run of it that goes on."""
        self.desk.check_awaited()
        assert self.lane.turn is not None
        return self.lane.turn.calls[self.call_id]

    def come_since(self, name: str) -> str | None:
        """Return what a wait has come to by now, even if that was while this run was going on."""
        return self._call.memo.get(name)

    def count(self, prefix: str) -> int:
        """Count the steps and waits of the call that are over and whose name begins so."""
        return sum(name.startswith(prefix) for name in self._call.memo)

    def has_begun(self, name: str) -> bool:
        """Say whether a wait is for what is open already: a question, a sign-in, a child."""
        requests = self.lane.turn.requests.values() if self.lane.turn else ()
        return any((q.call_id, q.name) == (self.call_id, name) for q in requests)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Do something meanwhile that the tool is not unwound in the middle of."""
        step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._steps.add(step)
        around = _steps_around.set((*_steps_around.get(), step))
        try:
            yield
        finally:
            _steps_around.reset(around)
            self._leave(step)

    def _leave(self, step: asyncio.Future[None]) -> None:
        self._steps.discard(step)
        if not step.done():
            step.set_result(None)

    async def until_no_step(self) -> None:
        """Let the steps that other tasks are at come to their ends."""
        while self._steps:
            await asyncio.wait(self._steps)

    async def stop_at(self, wait: Wait) -> Parked:
        """Return what unwinds the tool until one of its waits is over.

        What its other tasks can do goes first, up to their waits, and the tool may come to its end
        with that: once it is unwound it cannot, as it may have taken the unwinding for an outcome.
        """
        task = asyncio.current_task()
        self._stopped[task] = wait
        for step in _steps_around.get():  # which is unwound, too
            self._leave(step)
        try:
            await self._until_others_stop()
        except asyncio.CancelledError:
            if not self.is_parked:  # the tool does without it
                del self._stopped[task]
            raise
        self.is_parked = True
        if task:
            task.add_done_callback(look_at)
        return Parked(self)

    async def _until_others_stop(self) -> None:
        rounds = 0
        while rounds < ROUNDS:
            await asyncio.sleep(0)
            rounds += 1
            if self._steps:
                await self.until_no_step()
                rounds = 0

    async def stop_until(self, name: str, milliseconds: int) -> Parked:
        """Return the same for a wait that takes so long from when it began."""
        due_at = self._call.timers.get(name) or self.desk.now() + max(1, milliseconds)
        return await self.stop_at(Wait(name, due_at=due_at))

    async def pause(
        self, awaited: str, since: int, *, first: timedelta, longest: timedelta
    ) -> Parked:
        """Return what unwinds the tool until something has come, or a time has passed.

        The time is doubled with every pause, up to the longest; pauses `since` another number
        begin anew. All of the longest have one name: a call remembers no more than a few.
        """
        name = f"{awaited}{PAUSE}{since}."
        first = max(first, A_MILLISECOND)
        doublings = ceil(log2(max(1.0, longest / first)))
        over = min(self.count(name), doublings)
        length = int(min(first * 2**over, longest) / A_MILLISECOND)
        return await self.stop_until(f"{name}{over + 1}", length)


def look_at(unwound: asyncio.Task[Any]) -> None:
    """Have nobody told of a task that was unwound and that its tool has not looked at."""
    if not unwound.cancelled():
        unwound.exception()
