"""The store as a worker uses it, listened to: says in the program's log which turns failed.

A turn that failed raises nothing anywhere: who does not look at its result would not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.record import TurnFailed
from holdfast.ids import get_logger
from holdfast.store import Commit, Committed, Refused, Store

log = get_logger("holdfast.engine")


class Herald:
    """A store that does what the one inside it does; all but one method are that one's own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self._store.commit(commits)
        for commit, result in zip(commits, results, strict=True):
            for record in commit.records:
                if type(record) is TurnFailed and not isinstance(result, Refused):
                    tell(commit, record)
        return results


def tell(commit: Commit, failed: TurnFailed) -> None:
    """Name the failure's code; what it says may be anything, and is in the session's log."""
    facts = {
        "session": commit.session_id,
        "lane": commit.lane,
        "turn": failed.turn,
        "worker": commit.worker,
        "fence": commit.fence,
        "code": failed.error.code,
    }
    log.warning("a turn failed", extra=facts)
