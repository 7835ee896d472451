"""The calls of a lane that are under way: their tasks, their timeouts, their results.

Owns when a call is begun, stopped and given up. Each call has a task beside the lane's own loop;
its result is kept here and the lane is woken. Calls have no timers of their own: one alarm is set
for the first that is due. Refuses to know what a call does: `lane_runner.py` gives a function.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from outlast.clock import Clock
from outlast.core.result import Result

NEVER = float("inf")


class CallTimeouts(Struct, frozen=True, gc=False):
    """How many seconds a call may take, and how many it may show no sign of life."""

    whole: float
    silence: float = NEVER


class RunningCall:
    """One call. `due_at` is when it has to be looked at, in seconds of the monotonic clock.

    `is_awaited` until it has ended, or was given up. `is_stopped` if it was told to end: by its
    turn (`is_cancelled`), for being late (`is_overdue`), or with its lane. A cancellation of its
    task otherwise is the call's own doing. `is_ending` while its outcome is being recorded.
    """

    task: asyncio.Task[None]
    is_awaited = True
    is_stopped = False
    is_cancelled = False
    is_overdue = False
    is_ending = False

    def __init__(self, call_id: str, timeouts: CallTimeouts, clock: Clock) -> None:
        self.call_id = call_id
        self._clock = clock
        self._silence = timeouts.silence
        now = clock.monotonic()
        self._end_at = now + timeouts.whole
        self.due_at = min(self._end_at, now + self._silence)

    def show_life(self) -> None:
        """Begin to count the silence anew."""
        self.due_at = min(self._end_at, self._clock.monotonic() + self._silence)

    def time_out(self, grace: float) -> None:
        """Stop it for having taken too long. It has a little time to end by itself."""
        self.is_overdue = True
        self.due_at = self._clock.monotonic() + grace
        self.stop()

    def cancel(self) -> None:
        """Stop it because its turn is being stopped, which has a timeout of its own."""
        self.is_cancelled = True
        self.due_at = NEVER
        self.stop()

    def stop(self) -> None:
        self.is_stopped = True
        self.task.cancel()

    def end(self) -> None:
        """Time it out no more: its outcome is known, and only has to be recorded."""
        self.is_ending = True
        self.due_at = NEVER


Do = Callable[[RunningCall], Awaitable[Result | None]]


class CallTasks:
    """One lane's calls. `timed_out` returns the result of a call that does not even stop."""

    def __init__(
        self,
        clock: Clock,
        stop_grace: float,
        wakeup: asyncio.Event,
        timed_out: Callable[[str], Result],
    ) -> None:
        self.results: list[Result] = []
        self._clock = clock
        self._stop_grace = stop_grace
        self._wakeup = wakeup
        self._timed_out = timed_out
        self._calls: dict[str, RunningCall] = {}
        self._error: BaseException | None = None
        self._alarm: tuple[float, asyncio.TimerHandle] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs, and nothing that has ended is left."""
        return not (self._calls or self.results)

    def is_running(self, call_id: str) -> bool:
        return call_id in self._calls

    def begin(self, call_id: str, timeouts: CallTimeouts, do: Do) -> RunningCall:
        """Begin a call in a task of its own."""
        call = RunningCall(call_id, timeouts, self._clock)
        self._calls[call_id] = call
        call.task = asyncio.create_task(self._run(call, do))
        return call

    async def _run(self, call: RunningCall, do: Do) -> None:
        try:
            result = await do(call)
            if result is not None and call.is_awaited:
                self.results.append(result)
        except asyncio.CancelledError:
            raise
        # LaneLost and LaneStale pass here as well: a call's journal raises them when its commit is
        # refused.
        except BaseException as error:  # noqa: BLE001 - raised again by the lane's own loop
            if call.is_awaited:
                self._error = error
        finally:
            if call.is_awaited:
                self._forget(call)
                self._wakeup.set()

    def _forget(self, call: RunningCall) -> None:
        """Stop tracking a call. Its task may still be running; its result is dropped."""
        del self._calls[call.call_id]
        call.is_awaited = False

    def _forget_all(self) -> None:
        for call in [*self._calls.values()]:
            self._forget(call)

    def check(self) -> None:
        """Raise what a call's task raised instead of returning a result."""
        if self._error:
            raise self._error

    def take_results(self) -> list[Result]:
        """Return the results of the calls that have ended since the last look."""
        if self._error:
            raise self._error
        results, self.results = self.results, []
        return results

    # Time

    def set_alarm(self, seconds: float = NEVER) -> None:
        """Wake the lane when so much time has passed, or a call is due.

        An alarm that is set for an earlier instant stays: when it rings, it is set again.
        """
        now = self._clock.monotonic()
        at = now + seconds
        for call in self._calls.values():
            at = min(at, call.due_at)
        if at == NEVER:
            return
        if self._alarm is not None:
            # Cancelling and setting a timer for each look would cost more than a ring that comes
            # too early.
            if self._alarm[0] <= at:
                return
            self._alarm[1].cancel()
        timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._ring)
        self._alarm = (at, timer)

    def _ring(self) -> None:
        self._alarm = None
        now = self._clock.monotonic()
        for call in [call for call in self._calls.values() if call.due_at <= now]:
            if call.is_overdue:  # it does not even stop
                self._forget(call)
                self.results.append(self._timed_out(call.call_id))
            else:
                call.time_out(self._stop_grace)
        # The lane itself may be held up by the very call that has to be stopped next.
        self.set_alarm()
        self._wakeup.set()

    # Stopping

    async def stop(self) -> list[Result]:
        """Cancel all that runs, give it a little time, and return what ended by itself."""
        for call in self._calls.values():
            call.cancel()
        await self.wait(self._stop_grace)
        # An outcome that is being recorded stands, however long that takes.
        if ending := [call.task for call in self._calls.values() if call.is_ending]:
            await asyncio.wait(ending)
        self.check()
        self._forget_all()
        return self.take_results()

    async def drop(self, call_id: str) -> None:
        """Stop a call, if it runs, and wait a little for it; its result is dropped."""
        if call := self._calls.get(call_id):
            call.stop()
            await asyncio.wait([call.task], timeout=self._stop_grace)
            if call.is_awaited:
                self._forget(call)

    async def wait(self, seconds: float) -> None:
        """Let what runs come to its end, for a while."""
        if tasks := [call.task for call in self._calls.values()]:
            await asyncio.wait(tasks, timeout=seconds)

    async def abandon(self) -> None:
        """Stop all that runs, and drop its results."""
        for call in self._calls.values():
            call.stop()
        await self.wait(self._stop_grace)
        self._forget_all()
        self.results.clear()
        self._error = None

    def close(self) -> None:
        """Set no more alarms."""
        if self._alarm is not None:
            self._alarm[1].cancel()


async def to_its_end(commit: Awaitable[Any]) -> None:
    """Wait until it is known what became of a commit, even if the call is stopped meanwhile."""
    committing = asyncio.ensure_future(commit)
    stopped: asyncio.CancelledError | None = None
    # A cancellation ends the waiting, not the commit: what became of it decides what the lane
    # records.
    while not committing.done():
        try:
            await asyncio.wait([committing])
        except asyncio.CancelledError as error:
            stopped = error
    committing.result()
    if stopped:
        raise stopped
