"""The memory store: the contract's methods, each one synchronous step on the tables."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import islice
from types import TracebackType

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.record import FORMAT
from outlast.errors import OutlastError, UnsupportedStore
from outlast.store import (
    NO_LIMITS,
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    DeadLetter,
    DeliveryInfo,
    EffectClaim,
    KeyInfo,
    LaneInfo,
    Lease,
    Loaded,
    LogPage,
    OutboxCursor,
    Permit,
    PermitInfo,
    PermitRequest,
    Refused,
    RequestInfo,
    ScheduleInfo,
    SessionInfo,
    StoreCounts,
    StoredSecret,
    Transaction,
    WorkerInfo,
)
from outlast.stores.listener import EVERYTHING, Heard, Listeners
from outlast.stores.memory import outbox, ownership, permit, reading, vault
from outlast.stores.memory.admit import admit
from outlast.stores.memory.commit import commit
from outlast.stores.memory.erasure import erase
from outlast.stores.memory.outbox import settle
from outlast.stores.memory.schedule import advance, arm, pause
from outlast.stores.memory.table import Tables


class MemoryStore:
    """A `outlast.store.Store` for one process and one event loop; not durable.

    Any number of workers in the process may share it.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._tables = Tables()
        self._listeners = Listeners()

    def __repr__(self) -> str:
        return "MemoryStore()"

    async def migrate(self) -> None:
        """Do nothing: the schema is this code."""

    async def close(self) -> None:
        """Stop all listening. What was written stays for as long as the object does."""
        self._listeners.clear()

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        now = self._clock.now()
        results = [admit(self._tables, admission, now) for admission in admissions]
        for result in results:
            if isinstance(result, AdmissionReceipt) and not result.duplicate:
                self._tell(result.session_id, arrived=True)
        return results

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        return ownership.enlist(self._tables, worker, lease, self._clock)

    def declare_dead(self, worker: str) -> None:
        """Make a worker look as if it had been killed: the next `find_dead` finds it."""
        if row := self._tables.workers.get(worker):
            row.looks_dead = True

    async def find_dead(self) -> Sequence[str]:
        dead = ownership.bury_dead(self._tables)
        if dead:
            self._tell("", arrived=True)
        return dead

    async def workers(self) -> Sequence[WorkerInfo]:
        return ownership.living(self._tables, self._clock.now())

    async def drain(self, worker: str) -> bool:
        is_there = ownership.drain(self._tables, worker, self._clock.now())
        if is_there:
            self._tell("", arrived=True)
        return is_there

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
        now = self._clock.now()
        return ownership.claim(
            self._tables, worker, limit, set(held), agents, version, lanes, most, now
        )

    async def acquire(self, wishes: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        answers: list[Permit | Refused] = []
        for wish in wishes:
            answer, woken = permit.acquire(self._tables, wish, self._clock.now())
            answers.append(answer)
            for session_id in woken:
                self._tell(session_id, arrived=True)
        return answers

    async def permits(
        self, session_id: str | None = None, name: str | None = None, limit: int = 500
    ) -> Sequence[PermitInfo]:
        return permit.listing(self._tables, session_id, name, limit)

    async def pass_by(self, patience: int) -> int:
        now = self._clock.now()
        passed, woken = permit.pass_by(self._tables, now - patience, now)
        for session_id in woken:
            self._tell(session_id, arrived=True)
        return passed

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = [self._commit(wanted) for wanted in commits]
        for wanted, result in zip(commits, results, strict=True):
            if isinstance(result, Committed):
                self._tell(wanted.session_id, arrived=wanted.release)
                self._free(wanted)
        return results

    def _commit(self, wanted: Commit) -> Committed | Refused:
        result = commit(self._tables, wanted, self._clock.now())
        if isinstance(result, Committed):
            for sent in wanted.sends:
                if isinstance(admit(self._tables, sent, self._clock.now()), AdmissionReceipt):
                    self._tell(sent.session_id, arrived=True)
        return result

    def _free(self, wanted: Commit) -> None:
        now = self._clock.now()
        if wanted.frees:
            place = (wanted.session_id, wanted.lane)
            for session_id in permit.free(self._tables, *place, wanted.frees, now):
                self._tell(session_id, arrived=True)

    def transaction(self, limit: float = 5.0) -> AbstractAsyncContextManager[Transaction]:
        return NoTransaction()

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        session = reading.find_session(self._tables, session_id)
        return reading.load(self._tables, session, lane, after)

    async def read(self, session_id: str, after: int, limit: int = 500) -> LogPage:
        session = reading.find_session(self._tables, session_id)
        return reading.read(self._tables, session, after, limit)

    async def read_back(self, session_id: str, before: int, limit: int = 50) -> LogPage:
        session = reading.find_session(self._tables, session_id)
        return reading.read_back(self._tables, session, before, limit)

    async def session(self, session_id: str) -> SessionInfo | None:
        session = self._tables.sessions.get(session_id)
        if session is None:
            return None
        return reading.describe_session(self._tables, session, self._clock.now())

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
        newest_first = sorted(self._tables.sessions.values(), key=lambda s: s.id, reverse=True)
        candidates = (
            reading.describe_session(self._tables, row, self._clock.now())
            for row in newest_first
            if (before is None or row.id < before)
            and tenant in (None, row.tenant)
            and agent in (None, row.agent)
            and parent in (None, row.parent)
        )
        return list(islice((s for s in candidates if status in (None, s.status)), limit))

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
        def is_wanted(info: LaneInfo) -> bool:
            return (
                session_id in (None, info.session_id)
                and tenant in (None, info.tenant)
                and agent in (None, info.agent)
                and status in (None, info.status)
                and worker in (None, info.worker)
                and (after is None or is_behind(info, *after))
            )

        return list(islice(filter(is_wanted, reading.list_lanes(self._tables)), limit))

    async def delivery(self, delivery_id: str) -> DeliveryInfo | None:
        row = self._tables.deliveries.get(delivery_id)
        return reading.describe_delivery(row) if row else None

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        session = self._tables.sessions.get(session_id)
        names = session.deliveries if session else []
        return [reading.describe_delivery(self._tables.deliveries[name]) for name in names]

    async def request(self, request_id: str) -> RequestInfo | None:
        row = self._tables.requests.get(request_id)
        return reading.describe_request(self._tables, row) if row else None

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
        wanted = (
            info
            for info in reading.list_requests(self._tables, after)
            if session_id in (None, info.session_id)
            and tenant in (None, info.tenant)
            and agent in (None, info.agent)
            and (kinds is None or info.kind in kinds)
            and (info.state == "open" or not open_only)
        )
        return list(islice(wanted, limit))

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        found = self._tables.tokens.get((tenant, token))
        return found or (None if living else self._tables.dead_tokens.get((tenant, token)))

    async def tokens(self, session_id: str) -> Sequence[tuple[str, bool]]:
        session = self._tables.sessions.get(session_id)
        return reading.tokens_of(self._tables, session) if session else []

    async def effect(self, scope: str, key: str) -> EffectClaim | None:
        return self._tables.effects.get((scope, key))

    async def erase(self, session_id: str) -> bool:
        session = self._tables.sessions.get(session_id)
        if session is None:
            return False
        for woken in erase(self._tables, session, self._clock.now()):
            self._tell(woken, arrived=True)
        self._tell(session_id, arrived=True)
        return True

    async def doomed(self, limit: int = 100) -> Sequence[str]:
        found = sorted(row.id for row in self._tables.sessions.values() if row.is_doomed)
        return found[:limit]

    async def census(self) -> StoreCounts:
        return reading.take_census(self._tables, self._clock.now())

    async def add_key(self, key: KeyInfo) -> None:
        self._tables.keys.setdefault(key.key_id, key)

    async def key(self, key_id: str) -> KeyInfo | None:
        return self._tables.keys.get(key_id)

    async def keys(self, tenant: str | None = None) -> Sequence[KeyInfo]:
        found = [key for key in self._tables.keys.values() if tenant in (None, key.tenant)]
        return sorted(found, key=lambda key: key.key_id)

    async def revoke_key(self, key_id: str, at: int) -> bool:
        key = self._tables.keys.get(key_id)
        if key and not key.revoked_at:
            self._tables.keys[key_id] = replace(key, revoked_at=at)
        return key is not None

    async def keep_secret(self, secret: StoredSecret, *, expected: int | None) -> bool:
        return vault.keep(self._tables, secret, expected, self._clock.now())

    async def secret(self, tenant: str, name: str) -> StoredSecret | None:
        return vault.find(self._tables, tenant, name, self._clock.now())

    async def drop_secret(self, tenant: str, name: str) -> bool:
        found = vault.find(self._tables, tenant, name, self._clock.now())
        self._tables.secrets.pop((tenant, name), None)
        return found is not None

    async def hold(self, name: str, holder: str, length: int) -> bool:
        now = self._clock.now()
        return vault.hold(self._tables, name, holder, now + length, now)

    async def let_go(self, name: str, holder: str) -> None:
        vault.let_go(self._tables, name, holder)

    async def arm_schedule(self, schedule: ScheduleInfo) -> None:
        arm(self._tables, schedule)

    async def schedules(self) -> Sequence[ScheduleInfo]:
        return [info for _, info in sorted(self._tables.schedules.items())]

    async def advance_schedule(
        self, name: str, seen: int | None, *, next_at: int | None, fired_at: int, session_id: str
    ) -> bool:
        return advance(self._tables, name, seen, next_at, fired_at, session_id)

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return pause(self._tables, name, paused)

    async def drop_schedule(self, name: str) -> bool:
        return self._tables.schedules.pop(name, None) is not None

    async def take_cursors(self, limit: int, hold: int) -> Sequence[OutboxCursor]:
        return outbox.take(self._tables, limit, hold, self._clock.now())

    async def settle_cursor(
        self,
        cursor: OutboxCursor,
        *,
        position: int,
        again_at: int | None,
        tries: int = 0,
        error: str = "",
        dead: Sequence[DeadLetter] = (),
    ) -> bool:
        now = self._clock.now()
        return settle(self._tables, cursor, position, again_at, tries, error, dead, now)

    async def cursors(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        failing_only: bool = False,
        limit: int = 100,
    ) -> Sequence[OutboxCursor]:
        wanted = (
            info
            for info in outbox.listing(self._tables)
            if session_id in (None, info.session_id)
            and tenant in (None, info.tenant)
            and (info.tries or not failing_only)
        )
        return list(islice(wanted, limit))

    async def next_due_at(self) -> int | None:
        return outbox.next_due_at(self._tables)

    async def dead_letters(
        self, *, tenant: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        newest_first = reversed(self._tables.dead_letters)
        wanted = (
            letter
            for letter in newest_first
            if tenant in (None, letter.tenant) and session_id in (None, letter.session_id)
        )
        return list(islice(wanted, limit))

    def counts(self) -> Mapping[str, int]:
        return {}

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        return ownership.find_arrivals(self._tables, heads)

    async def next_ready_at(self, after: int) -> int | None:
        return ownership.next_ready_at(self._tables, after, self._clock.now())

    def listen(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        return self._listeners.add(heard, session_id)

    def _tell(self, session_id: str, *, arrived: bool) -> None:
        asyncio.get_running_loop().call_soon(self._listeners.tell, session_id, arrived)


def is_behind(info: LaneInfo, session_id: str, lane: str) -> bool:
    """Say whether a lane is listed behind another: newest sessions first, then by name."""
    same = info.session_id == session_id
    return info.lane > lane if same else info.session_id < session_id


class NoTransaction(AbstractAsyncContextManager[Transaction]):
    """Stands where other stores open a transaction."""

    async def __aenter__(self) -> Transaction:
        raise UnsupportedStore(
            "the memory store has no SQL, so tools cannot be transactional on it;"
            " use sqlite:// or postgresql://"
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing was entered."""
