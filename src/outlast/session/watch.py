"""Warns a waiting process, once, if no worker serves the session's agent."""

from __future__ import annotations

from outlast.log.explain.owner import serves
from outlast.log_context import get_logger
from outlast.session.rest import is_ready
from outlast.store import SessionInfo, Store

log = get_logger("outlast.session")


class IdleWorkerCheck:
    """Looks for workers once, when a lane of the session is ready and has no owner."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._has_looked = False

    async def look(self, info: SessionInfo) -> None:
        ready = [lane for lane in info.lanes if is_ready(lane, info.seen_at) and not lane.worker]
        if self._has_looked or not ready:
            return
        self._has_looked = True
        workers = await self._store.work.workers()
        if not any(serves(worker, lane) for worker in workers for lane in ready):
            log.warning(
                "no worker serves this session; it is waited for until one does",
                extra={"session": info.session_id, "agent": info.agent, "workers": len(workers)},
            )
