"""The topic `log` in SQLite: each method names the function that writes or reads for it.

See `outlast.store.log` for the promises; `admission.py`, `commit.py`, `transaction.py`,
`reading.py` and `erasure.py` keep them.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

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
from outlast.store.admission import body_of
from outlast.stores.sqlite import erasure, listing, reading
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.admission import write_admission
from outlast.stores.sqlite.commit import write_commits


class SqliteLog:
    """See `outlast.store.LogStore`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        bodies = [try_encode(admission) for admission in admissions]
        works = [
            partial(write_admission, admission=admission, body=body)
            for admission, body in zip(admissions, bodies, strict=True)
            if isinstance(body, bytes)
        ]
        size = sum(len(body) for body in bodies if isinstance(body, bytes))
        results = iter(await self._access.write(*works, size=size))
        return [body if isinstance(body, OutlastError) else next(results) for body in bodies]

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        size = sum(map(size_of, commits))
        session = commits[0].session_id if len(commits) == 1 else ""
        return await self._access.write_all(write_commits, commits, size, session)

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return self._access.transaction(limit)

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        return await self._access.read(lambda db: listing.effect(db, scope, key))

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        return await self._access.read(lambda db: reading.load(db, session_id, lane, after))

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        return await self._access.read(
            lambda db: reading.read(db, session_id, after, limit, large=large, lane=lane)
        )

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> LogPage:
        return await self._access.read(lambda db: reading.read_back(db, session_id, before, limit))

    async def erase(self, session_id: str) -> bool:
        erase = partial(erasure.write_erasure, session_id=session_id)
        (erased,) = await self._access.write(erase, size=erasure.PIECE)
        if erased.has_more:
            await self._finish_erasing()
        elif erased.was_there:
            await self._access.wipe()
        return bool(erased.was_there)

    async def drop_snapshots(self, session_id: str) -> None:
        await self._access.write(partial(erasure.drop_snapshots, session_id=session_id))

    async def find_orphans(self, limit: int = 100) -> Sequence[str]:
        return await self._access.read(lambda db: erasure.find_orphans(db, limit))

    async def resume_erasing(self) -> None:
        """Finish an erasure that another process began and did not end."""
        if await self._access.read(erasure.has_unfinished):
            await self._finish_erasing()

    async def _finish_erasing(self) -> None:
        has_more = True
        while has_more:
            # One piece per transaction, so that commits of others are not kept waiting.
            (has_more,) = await self._access.write(erasure.go_on, size=erasure.PIECE)
        await self._access.wipe()


def try_encode(admission: Admission) -> bytes | OutlastError:
    try:
        return body_of(admission)
    except OutlastError as error:
        return error


def size_of(commit: Commit) -> int:
    """Return how many bytes a commit has to be packed and written for, about."""
    snapshot = len(commit.snapshot.data) if commit.snapshot else 0
    return len(commit.body) + snapshot + (len(commit.slices.data) if commit.slices else 0)
