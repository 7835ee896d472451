"""Background duties: a loop that exists once, and small classes that do the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from outlast.engine.lane_runner import LaneRunner
from outlast.errors import StoreError
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.engine")

PATIENCE = 3_000
"""For so many milliseconds a place is kept for the call that it is for."""


class MaintenanceTask(Protocol):
    """Something to be done again and again."""

    @property
    def interval(self) -> float: ...

    async def run_once(self) -> int:
        """Do it, and return how much there was to do."""
        ...


async def keep_up(duty: MaintenanceTask) -> None:
    """Do a duty for ever: neither a store that is away nor anything unforeseen is its end."""
    while True:
        try:
            await duty.run_once()
        except StoreError as error:
            log.warning("a duty failed", extra={"duty": type(duty).__name__, "code": error.code})
        except Exception:
            log.exception("a duty failed", extra={"duty": type(duty).__name__})
        await asyncio.sleep(duty.interval)


class OrphanEraser:
    """Erases the sessions whose parent was erased, level by level."""

    interval = 30.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        return await bury(self._store)


async def bury(store: Store) -> int:
    """Erase all sessions that are doomed, and those that are doomed by that."""
    count = 0
    while doomed := await store.doomed():
        for session_id in doomed:
            count += await store.erase(session_id)
    return count


class StalePermitReaper:
    """Gives the places under limits of those who do not come for them to the next in line.

    Who does not come has no worker, or was not heard of in the store: he may still ask later.
    """

    interval = 3.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        return await self._store.pass_by(PATIENCE)


class ArrivalPoller:
    """Looks for what arrived for lanes at work and was not told of: hints may be lost."""

    def __init__(
        self, store: Store, interval: float, carriers: Callable[[], list[LaneRunner]]
    ) -> None:
        self.interval = interval
        self._store = store
        self._carriers = carriers

    async def run_once(self) -> int:
        at_work = {(each.lane.session_id, each.lane.name): each for each in self._carriers()}
        if not at_work:
            return 0
        heads = [(*place, carrier.lane.head) for place, carrier in at_work.items()]
        found = await self._store.find_arrivals(heads)
        for place in found:
            at_work[place].nudge()
        return len(found)


class DeadWorkerDetector:
    """Frees the lanes of workers that are visibly dead."""

    def __init__(self, store: Store, interval: float, found: Callable[[], None]) -> None:
        self.interval = interval
        self._store = store
        self._found = found

    async def run_once(self) -> int:
        dead = await self._store.find_dead()
        for worker in dead:
            log.info("a worker died; its lanes are free", extra={"worker": worker})
        if dead:
            self._found()
        return len(dead)
