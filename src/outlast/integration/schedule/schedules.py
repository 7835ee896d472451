"""The schedules of an app: looked up, listed, paused, resumed and triggered.

Owns `app.schedules`, which joins what the code says of a schedule with what the store says. When
one is due is decided in `decide.py` and acted upon in `scheduler.py`, by workers alone.
"""

from collections.abc import Callable, Container, Sequence
from typing import Any

from msgspec.structs import replace

from outlast.core.name import check_dispatch
from outlast.core.setting import listed
from outlast.errors import InvalidDefinition, UnknownAgent, UnknownSchedule, UnknownWorkflow
from outlast.integration.schedule.launch import ScheduleLauncher
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.state import (
    ScheduleState,
    change_schedule,
    find_schedule,
    list_schedules,
    put_schedule,
)
from outlast.integration.schedule.status import ScheduleStatus, as_armed, as_written
from outlast.session import Session
from outlast.store import AdmissionReceipt, Store
from outlast.workflows.registry import Workflows


class Schedules:
    """Knows what the code says of schedules, and asks the store for the rest."""

    def __init__(
        self,
        schedules: Sequence[Schedule],
        agents: Container[str],
        store: Store,
        starter: ScheduleLauncher,
        workflows: Workflows | None = None,
    ) -> None:
        self.schedules = by_name(schedules, agents, workflows or {})
        self.starter = starter
        self._store = store

    async def standings(self) -> tuple[ScheduleStatus, ...]:
        """List the app's schedules and those that only the store knows, by name."""
        rows = {row.name: row for row in await list_schedules(self._store)}
        return tuple(
            standing(self.schedules.get(name), rows.get(name))
            for name in sorted({*rows, *self.schedules})
        )

    async def trigger(self, name: str, dispatch_id: str | None) -> AdmissionReceipt:
        """Start a session of a schedule now, whatever its instants, pause and overlap."""
        if name not in self.schedules:
            known = ", ".join(sorted(self.schedules)) or "none"
            raise UnknownSchedule(
                f"this app has no schedule {name!r}; it has: {known}", schedule=name
            )
        return await self.starter.trigger(self.schedules[name], dispatch_id)

    async def pause(self, name: str) -> None:
        """Fire no more instants until it is resumed."""
        if not await change_schedule(self._store, name, paused=True):
            raise unknown(name)

    async def resume(self, name: str) -> None:
        """Go on with the next instant; those that passed meanwhile are not made up for."""
        while (row := await find(self._store, name)).paused:
            now = self._store.clock.earliest()
            passed = row.times.latest(now, row.next_at or now)
            going = replace(
                row, paused=False, next_at=row.times.after(now), version=row.version + 1
            )
            if passed is not None:
                going = replace(going, settled_at=passed, last_outcome="skipped")
            if await put_schedule(self._store, going, expected=row.version):
                return


class ScheduleControl:
    """The schedules of an app and of its store: `app.schedules`."""

    def __init__(
        self,
        schedules: Schedules,
        handle: Callable[[str, AdmissionReceipt | None], Session[Any]],
    ) -> None:
        self._schedules = schedules
        self._handle = handle

    async def list(self) -> tuple[ScheduleStatus, ...]:
        """List the schedules by name, with when they are due."""
        return await self._schedules.standings()

    async def trigger(self, schedule: str, *, dispatch_id: str | None = None) -> Session[Any]:
        """Start a session of a schedule now, besides its instants, even if it is paused.

        Of a workflow it is the run, held as a session; `app.get_run` with its id holds it as a run.
        """
        receipt = await self._schedules.trigger(schedule, check_dispatch(dispatch_id))
        return self._handle(receipt.session_id, receipt)

    async def pause(self, schedule: str) -> None:
        """Stop a schedule until it is resumed, in all workers."""
        await self._schedules.pause(schedule)

    async def resume(self, schedule: str) -> None:
        """Go on with a schedule's next instant; instants that passed meanwhile do not fire."""
        await self._schedules.resume(schedule)


async def find(store: Store, name: str) -> ScheduleState:
    """Return what the store knows of a schedule."""
    if row := await find_schedule(store, name):
        return row
    raise unknown(name)


def unknown(name: str) -> UnknownSchedule:
    return UnknownSchedule(
        f"this store knows no schedule {name!r}; a worker of its app arms it", schedule=name
    )


def standing(schedule: Schedule | None, row: ScheduleState | None) -> ScheduleStatus:
    if row is None:
        assert schedule is not None
        return as_written(schedule)
    if schedule is None:
        return replace(as_armed(row), status="gone")
    armed = replace(as_armed(row), agent=schedule.agent, workflow=schedule.workflow)
    return armed if row.is_of(schedule) else replace(armed, status="changed")


def by_name(
    schedules: Sequence[Schedule], agents: Container[str], workflows: Workflows
) -> dict[str, Schedule]:
    found: dict[str, Schedule] = {}
    for schedule in listed("schedules", schedules):
        if not isinstance(schedule, Schedule):
            raise InvalidDefinition(f"a {type(schedule).__name__} is not a Schedule")
        if schedule.workflow:
            check_workflow(schedule, workflows)
        elif schedule.agent not in agents:
            raise UnknownAgent(
                f"schedule {schedule.name} starts agent {schedule.agent}, which this app does not"
                " have",
                agent=schedule.agent,
                schedule=schedule.name,
            )
        if schedule.name in found:
            raise InvalidDefinition(
                f"two schedules are named {schedule.name}: give each a name=",
                schedule=schedule.name,
            )
        found[schedule.name] = schedule
    return found


def check_workflow(schedule: Schedule, workflows: Workflows) -> None:
    """Refuse a workflow that the app does not have, and an input that it cannot take."""
    found = workflows.get(schedule.workflow)
    if found is None:
        raise UnknownWorkflow(
            f"schedule {schedule.name} runs workflow {schedule.workflow}, which this app does not"
            " have",
            workflow=schedule.workflow,
            schedule=schedule.name,
        )
    schedule.check_input(found)
