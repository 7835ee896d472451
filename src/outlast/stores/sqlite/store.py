"""The SQLite store: the contract's methods, each handed to who does it.

One connection writes, two threads read; a lease has a connection of its own. What each method does
is in the module of its name; what is kept beside sessions is in `shelf.py`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from outlast.clock import Clock
from outlast.core.codec import encode
from outlast.core.record import FORMAT
from outlast.errors import OutlastError, StoreUnavailable
from outlast.store import (
    NO_LIMITS,
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    DeliveryInfo,
    EffectClaim,
    LaneInfo,
    Lease,
    Loaded,
    LogPage,
    Permit,
    PermitInfo,
    PermitRequest,
    Refused,
    RequestInfo,
    SessionInfo,
    StoreCounts,
    Transaction,
    WorkerInfo,
)
from outlast.stores.listener import EVERYTHING, Heard
from outlast.stores.sqlite import erasure, listing, reading
from outlast.stores.sqlite import limit as permit
from outlast.stores.sqlite.admission import write_admission
from outlast.stores.sqlite.batcher import LoopBatcher
from outlast.stores.sqlite.checkpoint import wipe
from outlast.stores.sqlite.claim import write_claim
from outlast.stores.sqlite.commit import write_commits
from outlast.stores.sqlite.fork import check_process
from outlast.stores.sqlite.hearing import ListenerSet
from outlast.stores.sqlite.limit import write_wishes
from outlast.stores.sqlite.notify import LoopListeners
from outlast.stores.sqlite.path import check_place
from outlast.stores.sqlite.reader import Readers
from outlast.stores.sqlite.shelf import SideTables
from outlast.stores.sqlite.transaction import OpenTransaction
from outlast.stores.sqlite.unit_of_work import UnitOfWork, to_json
from outlast.stores.sqlite.worker import Registry
from outlast.stores.sqlite.writer import Do, Work, Writer, do_works

T = TypeVar("T")


class SqliteStore(SideTables):
    """A `outlast.store.Store` in one file. Nothing touches the disk before `migrate()`."""

    def __init__(self, path: str | Path, clock: Clock | None = None) -> None:
        self._path = Path(os.path.realpath(path))
        self._clock = clock or Clock()
        self._pid = os.getpid()
        self._ears = LoopListeners()
        self._hearing = ListenerSet(self._ears, self._clock, lambda: self._writer)
        self._opening = asyncio.Lock()
        self._writer: Writer | None = None
        self._gatherings: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBatcher]
        self._gatherings = WeakKeyDictionary()
        self._readers = Readers(self._path, self._clock)
        self._registry = Registry(self._path, self._clock)

    def __repr__(self) -> str:
        return f"SqliteStore({self._path})"

    # Life

    async def migrate(self) -> None:
        check_process(self._pid)
        async with self._opening:
            if self._writer:
                return
            check_place(self._path)
            writer = Writer(self._path, self._clock, self._ears)
            await writer.start()
            self._readers.start()
            self._writer = writer
        if await self._read(erasure.has_unfinished):
            await self._finish_erasing()

    async def close(self) -> None:
        check_process(self._pid)
        async with self._opening:
            if self._writer is None:
                return
            self._hearing.stop()
            writer, self._writer = self._writer, None
            if gathering := self._gatherings.get(asyncio.get_running_loop()):
                gathering.finish()
            self._gatherings.clear()
            await self._registry.close()
            await self._readers.stop()
            await writer.stop()

    def _open_writer(self) -> Writer:
        check_process(self._pid)
        if self._writer is None:
            raise StoreUnavailable(
                "this store is not open: use the app inside `async with app`, or open() it first;"
                " a store of your own is opened by migrate()"
            )
        return self._writer

    def _gathering(self) -> LoopBatcher:
        writer, loop = self._open_writer(), asyncio.get_running_loop()
        if gathering := self._gatherings.get(loop):
            return gathering
        return self._gatherings.setdefault(loop, LoopBatcher(writer))

    async def _write(self, *works: Work, size: int = 0) -> list[Any]:
        return await self._write_all(do_works, works, size)

    async def _write_all(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> list[Any]:
        return await self._gathering().write(do, items, size, session)

    async def _read(self, question: Callable[[UnitOfWork], T]) -> T:
        self._open_writer()
        return await self._readers.ask(question)

    # Arrivals

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
        results = iter(await self._write(*works, size=size))
        return [body if isinstance(body, OutlastError) else next(results) for body in bodies]

    # Ownership

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        self._open_writer()
        return await self._registry.enlist(worker, lease, self._write)

    async def find_dead(self) -> Sequence[str]:
        return await self._registry.find_dead(self._read, self._write)

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._read(self._registry.living)

    async def drain(self, worker: str) -> bool:
        return await self._registry.drain(worker, self._write)

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
        (claims,) = await self._write(
            partial(
                write_claim,
                worker=worker,
                limit=limit,
                held=held,
                agents=agents,
                version=version,
                lanes=lanes,
                most=most,
            )
        )
        return list(claims)

    async def acquire(self, wishes: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        return await self._write_all(write_wishes, wishes)

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        return await self._read(lambda desk: permit.listing(desk, session_id, name, limit))

    async def pass_by(self, patience: int) -> int:
        if not await self._read(lambda desk: permit.find_overdue(desk, patience)):
            return 0
        (passed,) = await self._write(partial(permit.pass_by, patience=patience))
        return int(passed)

    # Commits

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        size = sum(map(size_of, commits))
        session = commits[0].session_id if len(commits) == 1 else ""
        return await self._write_all(write_commits, commits, size, session)

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return OpenTransaction(self._open_writer, limit)

    # Reading

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        return await self._read(lambda desk: reading.load(desk, session_id, lane, after))

    async def read(self, session_id: str, after: int, limit: int = 500) -> LogPage:
        return await self._read(lambda desk: reading.read(desk, session_id, after, limit))

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> LogPage:
        return await self._read(lambda desk: reading.read_back(desk, session_id, before, limit))

    async def session(self, session_id: str) -> SessionInfo | None:
        return await self._read(lambda desk: listing.session(desk, session_id))

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        parent: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        filters = {
            "tenant": tenant,
            "agent": agent,
            "status": status,
            "parent": parent,
            "before": before,
            "limit": limit,
        }
        return await self._read(lambda desk: listing.sessions(desk, filters))

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        worker: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        after_session, after_lane = after or (None, None)
        filters = {
            "session_id": session_id,
            "tenant": tenant,
            "agent": agent,
            "status": status,
            "worker": worker,
            "after": after_session,
            "after_lane": after_lane,
            "limit": limit,
        }
        return await self._read(lambda desk: listing.lanes(desk, filters))

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        return await self._read(lambda desk: listing.delivery(desk, delivery_id))

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        return await self._read(lambda desk: listing.deliveries(desk, session_id))

    async def request(self, request_id: str) -> RequestInfo | None:
        return await self._read(lambda desk: listing.request(desk, request_id))

    async def requests(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        after: str | None = None,
        open_only: bool = True,
        limit: int = 500,
    ) -> Sequence[RequestInfo]:
        filters = {
            "session_id": session_id,
            "tenant": tenant,
            "agent": agent,
            "kinds": None if kinds is None else to_json(kinds),
            "after": after,
            "open_only": open_only,
            "limit": limit,
        }
        return await self._read(lambda desk: listing.requests(desk, filters))

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        return await self._read(lambda desk: listing.find_token(desk, tenant, token, living=living))

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        return await self._read(lambda desk: listing.tokens(desk, session_id))

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        return await self._read(lambda desk: listing.effect(desk, scope, key))

    def counts(self) -> Mapping[str, int]:
        return self._writer.counts if self._writer else {}

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        return await self._read(lambda desk: listing.find_arrivals(desk, heads))

    async def next_ready_at(self, after: int) -> int | None:
        return await self._read(lambda desk: listing.next_ready_at(desk, after))

    async def census(self) -> StoreCounts:
        return await self._read(listing.census)

    # Erasure

    async def erase(self, session_id: str) -> bool:
        erase = partial(erasure.write_erasure, session_id=session_id)
        (erased,) = await self._write(erase, size=erasure.PIECE)
        if erased.has_more:
            await self._finish_erasing()
        elif erased.was_there:
            await asyncio.to_thread(wipe, self._path, self._clock)
        return bool(erased.was_there)

    async def doomed(self, limit: int = 100) -> Sequence[str]:
        return await self._read(lambda desk: erasure.doomed(desk, limit))

    async def _finish_erasing(self) -> None:
        has_more = True
        while has_more:
            # Others may write in between.
            (has_more,) = await self._write(erasure.go_on, size=erasure.PIECE)
        await asyncio.to_thread(wipe, self._path, self._clock)

    # Wake-ups

    def listen(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        self._open_writer()
        return self._hearing.listen(heard, session_id)


def try_encode(admission: Admission) -> bytes | OutlastError:
    try:
        return encode(admission.records)
    except OutlastError as error:
        return error


def size_of(commit: Commit) -> int:
    """Return how many bytes a commit has to be packed and written for, about."""
    snapshot = len(commit.snapshot.data) if commit.snapshot else 0
    return len(commit.body) + snapshot + (len(commit.slices.data) if commit.slices else 0)
