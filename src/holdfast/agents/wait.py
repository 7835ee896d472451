"""Where a tool's waits stand: named so that every run finds them, known by what they came to.

A tool that has to wait is unwound by `Parked`, and run again from its first line when it
wakes; a wait that is over returns at once then.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from hashlib import blake2b
from math import ceil, log2
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.lane import Call, Lane
from holdfast.core.name import PAUSE
from holdfast.core.result import Waits
from holdfast.engine.performer import Desk

ROUNDS = 20
"""Of the event loop, in which a task's end reaches those who wait for it: two for each level."""


A_MILLISECOND = timedelta(milliseconds=1)


class Parked(BaseException):
    """Unwinds a tool that waits. Private, and not an Exception: tools cannot swallow it."""

    def __init__(self, wait: Waits) -> None:
        super().__init__("the tool waits")
        self.wait = wait


class Course(Struct):
    """What one task of a tool waits for, one after the other: `count` waits up to now."""

    name: str
    count: int = 0


class Waiting:
    """The waits of one run of a call. `parked` is the first that it stopped at, if it did.

    Waits that follow one another are told apart by their order. Tasks that a tool starts may
    come in another order each time: each is known by what it waits for first.
    """

    def __init__(self, call: Call, desk: Desk) -> None:
        self.call_id = call.call_id
        self.desk = desk
        self.parked: Parked | None = None
        self._memo = call.memo
        self._courses: dict[asyncio.Task[Any] | None, Course] = {asyncio.current_task(): Course("")}

    @property
    def lane(self) -> Lane:
        return self.desk.lane

    def next(self, kind: str, about: str = "") -> tuple[str, str | None]:
        """Name the next wait of this task, and return what it has come to, if it has.

        What it is `about` has to be the same in every run where tasks are told apart by it.
        """
        course = self._course(kind, about)
        course.count += 1
        name = f"{kind}:{course.name}{course.count}"
        return name, self._memo.get(name)

    def _course(self, kind: str, about: str) -> Course:
        task = asyncio.current_task()
        if task not in self._courses:
            said = f"{kind}\n{about}".encode(errors="surrogatepass")
            first = blake2b(said, digest_size=10).hexdigest()
            twins = sum(each.name.startswith(first) for each in self._courses.values())
            self._courses[task] = Course(f"{first}.{twins + 1}.")
        return self._courses[task]

    def come_since(self, name: str) -> str | None:
        """Return what a wait has come to by now, even if that was while this run was going on."""
        turn = self.lane.turn
        return turn.calls[self.call_id].memo.get(name) if turn else None

    def count(self, prefix: str) -> int:
        """Count the steps and waits of the call that are over and whose name begins so."""
        turn = self.lane.turn
        memo = turn.calls[self.call_id].memo if turn else {}
        return sum(name.startswith(prefix) for name in memo)

    def pause(self, awaited: str, since: int, *, first: timedelta, longest: timedelta) -> Parked:
        """Return what unwinds the tool until something has come, or a time has passed.

        The time is doubled with every pause, up to the longest; pauses `since` another number
        begin anew. All of the longest have one name: a call remembers no more than a few.
        """
        name = f"{awaited}{PAUSE}{since}."
        first = max(first, A_MILLISECOND)
        doublings = ceil(log2(max(1.0, longest / first)))
        over = min(self.count(name), doublings)
        due_at = self.desk.now() + max(1, int(min(first * 2**over, longest) / A_MILLISECOND))
        return self.park(Waits(self.call_id, f"{name}{over + 1}", due_at=due_at))

    def has_begun(self, name: str) -> bool:
        """Say whether a child is at work already that this wait is for."""
        requests = self.lane.turn.requests.values() if self.lane.turn else ()
        return any((q.kind, q.call_id, q.name) == ("child", self.call_id, name) for q in requests)

    async def stop_at(self, name: str) -> Parked:
        """Return what unwinds the tool until a child has ended that is at work already.

        What other tasks know by now goes first: the tool may come to its end with that. Once it
        is unwound it cannot, as it may have taken the unwinding for an outcome.
        """
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
        return self.park(Waits(self.call_id, name))

    def park(self, wait: Waits) -> Parked:
        """Return what unwinds the tool until its wait is over.

        A tool that does several things at once stops at several waits. It waits for the first, and
        the children of the others are started with it.
        """
        if self.parked is None:
            self.parked = Parked(wait)
        else:
            first = self.parked.wait
            self.parked.wait = replace(first, children=(*first.children, *wait.children))
        return self.parked
