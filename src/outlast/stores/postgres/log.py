"""The topic `log` in PostgreSQL. See `outlast.store.log` for the promises.

`admission.py` and `commit.py` make the items of the writer's groups, `reading.py` reads pages,
`transaction.py` is a tool's transaction, functions/*.sql do the rest.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from outlast.errors import OutlastError
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Commit,
    Committed,
    EffectClaim,
    Loaded,
    LogPage,
    Refused,
    Transaction,
)
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.admission import AdmissionItem
from outlast.stores.postgres.transaction import OpenTransaction, PostgresTransaction

_decode = msgspec.json.Decoder(list[str]).decode


class PostgresLog:
    """See `outlast.store.LogStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        writer = self._access.parts().writer
        # One that cannot be encoded is refused by itself; the others go out.
        items = [self._try_item(admission) for admission in admissions]
        futures = [writer.submit(item) for item in items if isinstance(item, AdmissionItem)]
        results = iter(await asyncio.gather(*futures))
        return [next(results) if isinstance(item, AdmissionItem) else item for item in items]

    def _try_item(self, admission: Admission) -> AdmissionItem | OutlastError:
        try:
            return AdmissionItem(admission, self._access.packer)
        except OutlastError as error:
            return error

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self._access.parts().committer.commit(commits)

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        def begin() -> PostgresTransaction:
            parts = self._access.parts()
            return PostgresTransaction(parts.transactions, parts.committer, limit)

        return OpenTransaction(begin)

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        rows = await self._access.ask("effect", {"scope": scope, "key": key})
        return EffectClaim(*rows[0]) if rows else None

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        return await self._access.parts().reading.load(session_id, lane, after)

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        reading = self._access.parts().reading
        return await reading.read(session_id, after, limit, large=large, lane=lane)

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> LogPage:
        return await self._access.parts().reading.read_back(session_id, before, limit)

    async def erase(self, session_id: str) -> bool:
        """Erase in a transaction of its own: within a group it could wait for its own locks.

        Of several callers that erase a session at once, one is told that there was one.
        """
        parts, named = self._access.parts(), {"session_id": session_id}
        # A look, so that nothing is locked for a session that is not there.
        if not await self._access.ask("knows_session", named):
            return False
        doubts: list[bool] = []
        statement = self._access.queries["erase"].bind(named)
        [(woken,)] = await parts.ungrouped.ask(statement, lambda: doubts.append(True))
        if woken is None and not doubts:
            return False
        # The session was there before; if an answer was lost, the first try has erased it.
        others = _decode(woken) if woken else []
        parts.notifier.tell(dict.fromkeys([session_id, *others], True))
        return True

    async def drop_snapshots(self, session_id: str) -> None:
        statement = self._access.queries["drop_snapshots"].bind({"session_id": session_id})
        await self._access.parts().ungrouped.ask(statement)

    async def find_orphans(self, limit: int = 100) -> Sequence[str]:
        rows = await self._access.ask("orphans", {"limit": max(0, limit)})
        return [session_id for (session_id,) in rows]
