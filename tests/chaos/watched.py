"""A store that writes down which lanes its worker was given, and what it wrote to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from chaos.ledger import Ledger
from outlast.core.record import FORMAT
from outlast.store import NO_LIMITS, Claim, Commit, Committed, Refused, Store
from outlast.testing import CrashingStore


class WatchedStore(CrashingStore):
    """Counts like one that crashes, and never does."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        super().__init__(store)
        self._ledger = ledger

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        agents: Sequence[str] | None = None,
        version: int = FORMAT,
        lanes: Sequence[str] | None = None,
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Sequence[Claim]:
        claims = await super().claim(worker, limit, held, agents, version, lanes, most)
        for claim in claims:
            self._ledger.mark(
                "claimed",
                session=claim.session_id,
                lane=claim.lane,
                worker=worker,
                fence=claim.fence,
            )
        return claims

    async def count(
        self, commit: Commit, write: Callable[[Commit], Awaitable[Committed | Refused]]
    ) -> Committed | Refused:
        result = await super().count(commit, write)
        if isinstance(result, Committed):
            self._ledger.mark(
                "wrote",
                session=commit.session_id,
                lane=commit.lane,
                worker=commit.worker,
                fence=commit.fence,
                offset=result.first_offset,
            )
        return result
