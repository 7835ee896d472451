"""The services that every worker runs beside its lanes.

Owns what each of them looks for. The loop that runs them is in `service.py`; all they do
is asked of the store, so any number of workers may do it at once.
"""

from collections.abc import Callable

from outlast.core.breaker import LINE
from outlast.engine.lane_runner import LaneRunner
from outlast.log_context import get_logger
from outlast.store import Store

log = get_logger("outlast.engine")

PERMIT_KEPT = 3_000
"""For so many milliseconds a permit is kept for the call that it was granted to."""


class OrphanEraser:
    """Erases the sessions whose parent was erased."""

    interval = 30.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        return await erase_orphans(self._store)


async def erase_orphans(store: Store) -> int:
    """Erase the sessions whose parent was erased, and then their children, level by level."""
    count = 0
    # Erasing a session makes orphans of its children: asked again until there are none.
    while orphans := await store.log.find_orphans():
        for session_id in orphans:
            count += await store.log.erase(session_id)
    return count


class StalePermitReaper:
    """Skips calls that were granted a permit but never claimed it.

    Usually no worker serves their agent. A skipped call rejoins the queue when it asks again. The
    first in the line of a provider has its permit while that is left alone, so it may have been
    granted by a worker that is gone, and whose lanes no other takes.
    """

    interval = 3.0

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run_once(self) -> int:
        return await self._store.limit.skip_stale(PERMIT_KEPT, LINE)


class ArrivalPoller:
    """Finds arrivals for the lanes that run here, in case the store's hint of one was lost."""

    def __init__(
        self, store: Store, interval: float, runners: Callable[[], list[LaneRunner]]
    ) -> None:
        self.interval = interval
        self._store = store
        self._runners = runners

    async def run_once(self) -> int:
        running = {(each.lane.session_id, each.lane.name): each for each in self._runners()}
        if not running:
            return 0
        # By what is folded, and not by what was told: a hint that came and was handled asks for
        # nothing.
        heads = [(*key, runner.lane.folds.head) for key, runner in running.items()]
        found = await self._store.work.find_arrivals(heads)
        for key in found:
            running[key].nudge()
        return len(found)


class DeadWorkerDetector:
    """Frees the lanes of workers that are provably dead; `found` is called if there were some."""

    def __init__(self, store: Store, interval: float, found: Callable[[], None]) -> None:
        self.interval = interval
        self._store = store
        self._found = found

    async def run_once(self) -> int:
        dead = await self._store.work.find_dead()
        for worker, evidence in dead.items():
            facts = {"worker": worker, "evidence": evidence}
            log.info("a worker died; its lanes are free", extra=facts)
        if dead:
            self._found()
        return len(dead)
