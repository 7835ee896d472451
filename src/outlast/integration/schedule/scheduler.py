"""The scheduler: starts the sessions that are due, in every worker of an app with schedules.

Any number of them may run at once. An instant's session is started under the instant's own name,
so it is started once; then the schedule is moved on, if it still stands where it was seen. A
scheduler that is killed in between leaves the same to do to the next. Idle, it reads a few
documents every few seconds.
"""

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.engine.service import ServiceLoop
from outlast.errors import OutlastError, SessionErased, StoreError
from outlast.integration.schedule.arming import ScheduleArming, session_before
from outlast.integration.schedule.decide import (
    NOTHING_BEFORE,
    FireSchedule,
    MoveDue,
    NothingDue,
    SkipInstant,
    Step,
    WaitForSession,
    decide,
)
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.schedules import Schedules
from outlast.integration.schedule.state import (
    ScheduleState,
    advance_schedule,
    list_schedules,
)
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.integration.schedule")

AT_ONCE = 100
"""Steps with one schedule before the others have their turn."""

INTERVAL = 5.0
WAITING = 1.0
SPREAD = 0.2
"""Seconds over which the fleet comes to an instant, so that the others see what the first did."""


class Scheduler:
    """Keeps an app's schedules, for as long as it is started."""

    def __init__(
        self, store: Store, clock: Clock, schedules: Schedules, interval: float = INTERVAL
    ) -> None:
        self.interval = self._longest = interval
        self._store = store
        self._clock = clock
        self._schedules = schedules
        self._charge = ScheduleArming(store, clock)
        self._loop = ServiceLoop("scheduler", self, clock)

    # Life

    def start(self) -> None:
        """Begin to look at the time."""
        self._loop.start()

    async def stop(self) -> None:
        """Look no more; what was begun is left for others to do again."""
        await self._loop.stop()

    async def run_once(self) -> int:
        """Do what is due, and return for how many instants a session was started or found."""
        self.interval = self._longest
        rows = {row.name: row for row in await list_schedules(self._store)}
        fired = 0
        for schedule in self._schedules.schedules.values():
            row = await self._charge.row_of(schedule, rows.get(schedule.name))
            if row is not None:
                fired += await self._keep(schedule, row)
        return fired

    # One schedule

    async def _keep(self, schedule: Schedule, row: ScheduleState) -> int:
        """Take a schedule forward until nothing is due; count its instants."""
        fired = 0
        for _ in range(AT_ONCE):
            step = await self._next_step(schedule, row)
            if isinstance(step, NothingDue | WaitForSession):
                self._look_again_for(step)
                return fired
            taken = await self._take(schedule, row, step)
            if taken is None:
                return fired
            row, fired = taken, fired + isinstance(step, FireSchedule)
        # There is more to do, after the others had their turn.
        self._look_again_in(0.0)
        return fired

    async def _next_step(self, schedule: Schedule, row: ScheduleState) -> Step:
        now = self._store.clock.earliest()
        is_due = row.next_at is not None and row.next_at <= now and not row.paused
        before = await session_before(self._store, row) if is_due else NOTHING_BEFORE
        return decide(schedule, row, now, before)

    async def _take(
        self, schedule: Schedule, row: ScheduleState, step: MoveDue | SkipInstant | FireSchedule
    ) -> ScheduleState | None:
        """Take a step; return the row after it, or None if nothing can be done about it now."""
        if isinstance(step, FireSchedule):
            return await self._fire(schedule, row, step)
        moved = replace(row, next_at=step.next_at)
        if isinstance(step, SkipInstant):
            moved, reason = moved.settle(step.instant, "skipped"), "overlap"
        elif step.missed_at is not None:
            moved, reason = moved.settle(step.missed_at, "missed"), "missed"
        else:
            return await self._advance(row, moved)
        facts = {"schedule": row.name, "instant": row.next_at, "next": step.next_at}
        log.info("a schedule skipped what was due", extra={**facts, "reason": reason})
        return await self._advance(row, moved)

    async def _fire(
        self, schedule: Schedule, row: ScheduleState, step: FireSchedule
    ) -> ScheduleState | None:
        assert row.next_at is not None
        # First the session, under the instant's own name, and then the row: a crash in between
        # starts the same again, which is found.
        session_id = await self._start(schedule, row.next_at)
        if session_id is None:
            return None
        # Only when its successor is there: a crash in between leaves two, and never none.
        if step.ends not in ("", session_id):
            await self._schedules.starter.end(schedule, step.ends)
        moved = replace(row, next_at=step.next_at, session_id=session_id or row.session_id)
        fired = moved.settle(step.instant, "fired")
        after = await self._advance(row, fired)
        # A scheduler that moved the schedule on meanwhile may not have known that it fired.
        if after is not None and after.settle(step.instant, "fired") != after:
            after = await self._advance(after, replace(fired, next_at=after.next_at))
        return after

    async def _start(self, schedule: Schedule, at: int) -> str | None:
        """Start an instant's session, or find that which was started, and return its id.

        The id is empty if that is not known any more; None: it is to be tried again.
        """
        facts = {"schedule": schedule.name, "instant": at}
        try:
            receipt = await self._schedules.starter.fire(schedule, at)
        except SessionErased:
            return ""
        except StoreError:
            raise
        except OutlastError as error:
            log.warning("a schedule could not fire", extra={**facts, "code": error.code})
            return None
        except Exception:
            log.exception("the message of a schedule could not be made", extra=facts)
            return None
        if not receipt.duplicate:
            log.info("a schedule fired", extra={**facts, "session": receipt.session_id})
        return receipt.session_id

    async def _advance(self, row: ScheduleState, to: ScheduleState) -> ScheduleState | None:
        """Move a row on, unless another has; return it as it is then, if the line is the same."""
        after = await advance_schedule(self._store, row, to)
        return after if after and after.has_line_of(row) else None

    # When to look again

    def _look_again_in(self, seconds: float) -> None:
        self.interval = min(self.interval, seconds)

    def _look_again_for(self, step: NothingDue | WaitForSession) -> None:
        if isinstance(step, WaitForSession):
            self._look_again_in(WAITING)
        elif step.until is not None:
            wait = (step.until - self._store.clock.earliest()) / 1000
            self._look_again_in(max(0.0, wait) + self._clock.jitter(SPREAD))
