"""The calls of a lane that are under way: begun, waited for, given up for late, stopped.

Each has a task beside the lane's own loop. What it comes to is left here, and the lane is stirred.
There is one alarm for all of them, set for the first that is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from outlast.clock import Clock
from outlast.core.result import Result
from outlast.engine.running_call import CallTimeouts, RunningCall

Do = Callable[[RunningCall], Awaitable[Result | None]]

NEVER = float("inf")


class CallTasks:
    """One lane's. `too_late` says what a call came to that does not even stop."""

    def __init__(
        self,
        clock: Clock,
        stop_grace: float,
        stirred: asyncio.Event,
        too_late: Callable[[str], Result],
    ) -> None:
        self.results: list[Result] = []
        self._clock = clock
        self._stop_grace = stop_grace
        self._stirred = stirred
        self._too_late = too_late
        self._works: dict[str, RunningCall] = {}
        self._broken: BaseException | None = None
        self._alarm: tuple[float, asyncio.TimerHandle] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and nothing that has ended is left."""
        return not (self._works or self.results)

    def begin(self, call_id: str, patience: CallTimeouts, do: Do) -> RunningCall:
        work = RunningCall(call_id, patience, self._clock)
        self._works[call_id] = work
        work.task = asyncio.create_task(self._see_through(work, do))
        return work

    async def _see_through(self, work: RunningCall, do: Do) -> None:
        try:
            result = await do(work)
            if result is not None and work.is_awaited:
                self.results.append(result)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - raised again by the lane's own loop
            if work.is_awaited:
                self._broken = error
        finally:
            if work.is_awaited:
                self._dismiss(work)
                self._stirred.set()

    def _dismiss(self, work: RunningCall) -> None:
        """Have nothing to do any more with a call, of which something may still be running."""
        del self._works[work.call_id]
        work.is_awaited = False

    def _dismiss_all(self) -> None:
        for work in [*self._works.values()]:
            self._dismiss(work)

    def check(self) -> None:
        """Raise what a call's task broke with."""
        if self._broken:
            raise self._broken

    def take_results(self) -> list[Result]:
        results, self.results = self.results, []
        return results

    # Time

    def set_alarm(self, seconds: float = NEVER) -> None:
        """Have the lane stir when so much time has passed, or a call is due.

        An alarm that rings too early is set again.
        """
        now = self._clock.monotonic()
        at = now + seconds
        for work in self._works.values():
            at = min(at, work.due_at)
        if at == NEVER:
            return
        if self._alarm is not None:
            if self._alarm[0] <= at:
                return
            self._alarm[1].cancel()
        timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._ring)
        self._alarm = (at, timer)

    def _ring(self) -> None:
        self._alarm = None
        now = self._clock.monotonic()
        for work in [work for work in self._works.values() if work.due_at <= now]:
            if work.is_overdue:  # it does not even stop
                self._dismiss(work)
                self.results.append(self._too_late(work.call_id))
            else:
                work.give_up(self._stop_grace)
        self.set_alarm()  # the lane may be held up, by the very call that is to be stopped
        self._stirred.set()

    # Stopping

    async def stop(self) -> list[Result]:
        """Signal all that runs, give it a little time, and return what ended by itself."""
        for work in self._works.values():
            work.cancel()
        await self.wait(self._stop_grace)
        # What is being recorded already is out of our hands.
        if ending := [work.task for work in self._works.values() if work.is_ending]:
            await asyncio.wait(ending)
        self.check()
        self._dismiss_all()
        return self.take_results()

    async def wait(self, seconds: float) -> None:
        """Let what runs come to its end, for a while."""
        if tasks := [work.task for work in self._works.values()]:
            await asyncio.wait(tasks, timeout=seconds)

    async def abandon(self) -> None:
        """Stop all that runs, and forget what it came to."""
        for work in self._works.values():
            work.stop()
        await self.wait(self._stop_grace)
        self._dismiss_all()
        self.results.clear()
        self._broken = None

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm[1].cancel()
