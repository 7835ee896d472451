"""A lane in its owner's hands: its folds in memory, and the only way to write to it.

Records are folded as they are written, and reach the log with the next `flush`, all
in one commit. What the store refuses because another worker owns the lane ends the
ownership at once: `LaneLost`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core import codec
from outlast.core import record as r
from outlast.core.action import Park
from outlast.core.event import type_of
from outlast.core.fold import ARRIVALS, fold, fold_all
from outlast.core.index import change_offset, index, status_of
from outlast.core.lane import CONTENDED, FOLD, UNDONE, Lane
from outlast.core.limit import Bound
from outlast.core.name import is_tool_call
from outlast.core.outcome import active_time, opening
from outlast.core.record import AnyRecord, Entry
from outlast.core.result import ChildEnd, NewChild
from outlast.core.slices import EMPTY, Slices, change, change_all
from outlast.core.view import View
from outlast.engine.commit_draft import HOLDS, NOTHING, CommitDraft
from outlast.engine.counters import WorkerCounters
from outlast.engine.session_message import WORTH_A_LETTER, SessionMessages
from outlast.errors import StoreFull, StoreUnavailable, UnknownSession
from outlast.store import (
    Admission,
    Claim,
    Commit,
    Committed,
    Loaded,
    Permit,
    PermitRequest,
    Refused,
    Snapshot,
    Store,
    Transaction,
)

log = logging.getLogger("outlast.engine")

P = ParamSpec("P")
T = TypeVar("T")

ENDS = (r.SessionCompleted, r.SessionFailed, r.SessionEnded)
NOTED = HOLDS | WORTH_A_LETTER
"""The records that mean something beside the log."""

SNAPSHOT_OVER = 64 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decode_lane = msgspec.msgpack.Decoder(Lane).decode
_decode_slices = msgspec.msgpack.Decoder(dict[str, tuple[str, ...]]).decode


class LaneLost(BaseException):
    """The lane is no longer ours. Private, and not an Exception: users cannot swallow it."""


class LaneStale(BaseException):
    """What was folded could not be written: an answer was quicker. Look at the log again."""


class TransactionUndone(Exception):
    """A tool's transaction was undone, for the reason given; nothing else has changed."""


class OwnedLane:
    """One claimed lane. Only one commit is under way at a time."""

    def __init__(
        self, claim: Claim, worker: str, store: Store, clock: Clock, tally: WorkerCounters
    ) -> None:
        self.session_id = claim.session_id
        self.name = claim.lane
        self.worker = worker
        self.fence = claim.fence
        self.number = claim.number
        self.state = Lane(session=claim.session_id, name=claim.lane)
        self.slices: Slices = EMPTY
        self.head = 0
        self.arrived = 0
        """Grows with all that others wrote and that is taken in: what was decided may be old."""
        self.last_at = 0
        self.stirred = asyncio.Event()
        self.lock = asyncio.Lock()
        self._view: View | None = None
        self._tail = 0
        self._snapshot_size = 0
        self._slices_changed = False
        self._snapshots: tuple[Snapshot | None, Snapshot | None] = (None, None)
        self._buffer: list[AnyRecord] = []
        self._beside = NOTHING
        self._permits = set(claim.permits)
        self._slices_seen = 0
        self._store = store
        self._clock = clock
        self._letters = SessionMessages(clock)
        self._tally = tally
        self._step_began = 0
        self._lag = claim.now - clock.now()

    def now(self) -> int:
        """Return the store's time, as far as it is known from the claim.

        Were this clock behind the store's, nothing that is due would be due here; were it ahead,
        what is not due yet would be.
        """
        return self._clock.now() + self._lag

    # Reading

    async def load(self) -> None:
        """Fold the lane from its snapshot and its log."""
        loaded = await self._load()
        self._restore(loaded)
        if loaded.snapshot is None:
            self._view = View()
            self._view.see_all(loaded.entries, self.name)

    async def reload(self) -> None:
        """Forget what is in memory and fold the log again, under the same fence."""
        async with self.lock:
            self.state = Lane(session=self.session_id, name=self.name)
            self.slices, self._view = EMPTY, None
            self._buffer, self._beside, self._snapshots = [], NOTHING, (None, None)
        await self.load()

    def _restore(self, loaded: Loaded) -> None:
        start = 0
        if loaded.snapshot:
            self.state = _decode_lane(loaded.snapshot.data)
            start = loaded.snapshot.offset
            self._snapshot_size = len(loaded.snapshot.data)
        self.state = fold_all(self.state, (e for e in loaded.entries if e.offset > start))
        self._slices_of(loaded)
        self.head = max(start, loaded.entries[-1].offset if loaded.entries else 0)
        self._tail = loaded.tail_bytes
        self.last_at = loaded.last_at

    def _slices_of(self, loaded: Loaded) -> None:
        """Fold the session's slices from their snapshot and what followed."""
        start = loaded.slices.offset if loaded.slices else 0
        kept: Slices = _decode_slices(loaded.slices.data) if loaded.slices else EMPTY
        self.slices = change_all(kept, (e for e in loaded.entries if e.offset > start))
        self._note_changes(start, loaded.entries)

    def _note_changes(self, seen: int, entries: Iterable[Entry]) -> None:
        """Remember up to where all changes of slices are known."""
        changes = [e.offset for e in entries if isinstance(e.record, r.StateChanged)]
        self._slices_seen = max([self._slices_seen, seen, *changes])

    async def renew(self, claim: Claim, worker: str) -> None:
        """Own the lane again, from what is still in memory and what came since."""
        self.fence, self.worker = claim.fence, worker
        self._permits = set(claim.permits)
        self._lag = claim.now - self._clock.now()
        self.stirred.clear()
        await self.catch_up()

    async def catch_up(self) -> None:
        """Take in what has arrived since the last look."""
        async with self.lock:
            await self._catch_up()

    async def _catch_up(self) -> None:
        loaded = await self._load(after=self.head)
        # While the lane is ours, others add arrivals only: the rest is by whoever owns it now.
        mine = (e for e in loaded.entries if e.lane == self.name and e.offset > self.head)
        if any(type(entry.record) not in ARRIVALS for entry in mine):
            raise LaneLost
        seen = self._slices_seen
        self._take_in(loaded.entries)
        if self._slices_seen > seen and self.is_ahead_by(r.StateChanged):
            self._order_slices(await self._load())

    def _take_in(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.offset <= self.head:
                continue
            if type(entry.record) in ENDS and self._is_ending():
                raise LaneStale("over")  # it ends once, and another lane was quicker
            self.state = fold_all(self.state, (entry,))
            if entry.offset > self._slices_seen:
                self.slices = change_all(self.slices, (entry,))
                self._note_changes(0, (entry,))
            if self._view and entry.lane == self.name:
                self._view.see((entry.record,))
            self.head = entry.offset
            self._stir()

    def _stir(self) -> None:
        self.arrived += 1
        self.stirred.set()

    async def view(self) -> View:
        """Return what the model sees; read from the log once, then kept."""
        if self._view is None:
            self._view = await self._read_view()
        return self._view

    async def _read_view(self) -> View:
        """Read what is folded, with all that is taken in meanwhile: from then on it is shown."""
        view, cursor = View(), 0
        while cursor < (head := self.head):
            page = await self.insist(self._store.read, self.session_id, cursor)
            view.see_all((e for e in page.entries if e.offset <= head), self.name)
            cursor = min(page.cursor, head)
        return view

    # Writing

    def write(self, records: Iterable[AnyRecord]) -> None:
        """Fold records now; they are in the log after the next flush."""
        for record in records:
            if self._permits or type(record) in NOTED:
                self._note(record)
            self._fold(record)
            self._buffer.append(record)

    def _note(self, record: AnyRecord) -> None:
        self._beside = self._noting(self._beside, record)

    def _noting(self, beside: CommitDraft, record: AnyRecord) -> CommitDraft:
        beside = beside.noting(record, self.state, self._permits)
        if type(record) in WORTH_A_LETTER:
            beside = beside.sending(self._letters.about(record, self.state))
        return beside

    def send(self, letters: tuple[Admission, ...]) -> None:
        """Have letters arrive at other sessions with the next flush."""
        self._beside = self._beside.sending(letters)

    def start(self, child: NewChild) -> None:
        """Start a child with the next flush; the call that waits for it has just been written."""
        assert self.state.turn is not None
        awaited = self.state.turn.requests.values()
        request_id = next(q.request_id for q in awaited if q.child == child.session_id)
        self.send((self._letters.start(self.state, child, request_id),))

    def report(self, end: ChildEnd) -> None:
        """Tell the parent, with the next flush, what this session came to."""
        self.send(self._letters.report(self.state, end))

    def _fold(self, record: AnyRecord) -> None:
        self.state = fold(self.state, record)
        if type(record) is r.StateChanged:
            self.slices = change(self.slices, record)
            self._slices_changed = True

    def take_over(self) -> bool:
        """Note that the lane changed hands, if its owner left it in the middle of something.

        Returns whether he did so without a word.
        """
        turn = self.state.turn
        if turn is None or self.state.waiting:
            return False
        taken = r.LaneTakenOver(
            worker=self.worker,
            fence=self.fence,
            since=self.now(),
            spent=active_time(self.state, max(self.last_at, turn.since)),
            graceful=turn.handed_back,
        )
        self.write([taken])
        return not taken.graceful

    def _is_ending(self) -> bool:
        return any(type(record) in ENDS for record in self._buffer)

    @property
    def is_ahead(self) -> bool:
        """Say whether something was written that is not in the log yet."""
        return bool(self._buffer)

    def is_ahead_by(self, kind: type[AnyRecord]) -> bool:
        """Say whether a record of a kind was written that is not in the log yet."""
        return any(type(record) is kind for record in self._buffer)

    def has_permit(self, call_id: str) -> bool:
        """Say whether a call holds a place that others wait for."""
        return call_id in self._permits

    async def flush(self) -> int:
        """Commit what was written; return the offset of its first record, 0 if there was none."""
        async with self.lock:
            if not self._buffer:
                return 0
            records, self._buffer = self._buffer, []
            number = self.number
            try:
                result = await self._commit(self._prepare(records))
            except BaseException:
                if self.number == number:  # nothing that was written since may go without them
                    self._buffer = [*records, *self._buffer]
                raise
            assert isinstance(result, Committed)
            return result.first_offset

    async def rest(self, park: Park) -> bool:
        """Give the lane back, unless something came that it has to look at first."""
        decided_at = self.head
        async with self.lock:
            if self.head != decided_at:
                return False  # taken in with a commit that was under way: decide anew
            parting = opening(self.state, park, self.now())
            awaits_permit = "limit" in park.wait
            before = self._beside
            # Whatever asked for them is not there any more.
            gone = self._ghosts() if awaits_permit else self._permits
            self._beside = before.freeing(gone)
            if await self._release(parting, park.until or None, awaits_permit=awaits_permit):
                return True
            self._beside = before
            return False

    def _ghosts(self) -> set[str]:
        """Return tool calls with permits that are of an answer which was lost before it was kept.

        The lane would wait for a place that such a call has, and nobody would give it back.
        """
        calls = self.state.turn.calls if self.state.turn else {}
        return {name for name in self._permits if is_tool_call(name) and name not in calls}

    async def hand_back(self) -> None:
        """Give the lane back as it is, for another worker to go on with at once."""
        now = self.now()
        goes_on = self.state.turn and not self.state.waiting
        parting = r.LaneTakenOver(
            worker=self.worker,
            fence=self.fence,
            since=now,
            spent=active_time(self.state, now),
            graceful=True,
        )
        async with self.lock:
            while not await self._release([parting] if goes_on else [], now):
                pass

    async def _release(
        self, last: Sequence[AnyRecord], ready_at: int | None, *, awaits_permit: bool = False
    ) -> bool:
        """Commit what was written and give the lane back. The caller holds the lane's lock."""
        written, self._buffer = self._buffer, []
        before = self.state
        for record in last:
            self.state = fold(self.state, record)
        commit = self._prepare([*written, *last], ready_at, release=True)
        if awaits_permit:
            commit = replace(commit, awaits_permit=True)
        result = await self._commit(commit)
        if isinstance(result, Refused):
            self.state, self._buffer = before, [*written, *self._buffer]
            await self._catch_up()
            return False
        return True

    async def attempt(
        self, make: Callable[[Slices], Iterable[AnyRecord]], arrived: int | None = None
    ) -> Refused | None:
        """Commit records by themselves; return why not, if another session was quicker.

        They are made of the newest slices, anew while other lanes are quicker, and folded when
        they are in the log, not before: what is refused has left nothing. What was decided when
        so many had `arrived` is refused as well, if it would be committed after more.
        """
        await self.flush()
        async with self.lock:
            if arrived is not None and arrived != self.arrived:
                return Refused("arrivals")
            while True:
                records = list(make(self.slices))
                apart = self._beside_of(records)
                commit = self._prepare_apart(records, apart, of_newest=True)
                result = await self._commit(commit, folded=0, apart=apart)
                if isinstance(result, Committed):
                    return None
                if result.reason != "slices_changed":
                    return result
                await self._look_again()

    def _beside_of(self, records: Sequence[AnyRecord]) -> CommitDraft:
        """Return what records mean beside the log that are not folded: nothing, if refused."""
        apart = NOTHING
        for record in records:
            apart = self._noting(apart, record)
        return apart

    def _prepare_apart(
        self,
        records: Sequence[AnyRecord],
        apart: CommitDraft,
        *,
        of_newest: bool,
        after: Sequence[AnyRecord] = (),
    ) -> Commit:
        """Return a commit of records that are not folded, `after` others that are."""
        commit = self._prepare([*after, *records], beside=self._beside.with_all(apart))
        if of_newest and commit.index.changes_slices:
            return replace(commit, slices_seen=self._slices_seen)
        return commit

    async def _look_again(self) -> None:
        """Take in what other lanes of the session have changed since the last commit."""
        loaded = await self._load(after=self._slices_seen)
        changes = [e for e in loaded.entries if e.offset > self._slices_seen]
        self.slices = change_all(self.slices, changes)
        self._note_changes(0, changes)
        self._slices_changed = True

    async def acquire(self, bounds: Mapping[str, tuple[Bound, ...]]) -> dict[str, Permit]:
        """Ask for the permits of calls, by their ids. Raises LaneLost if the lane is another's."""
        wishes = [
            PermitRequest(
                session_id=self.session_id,
                lane=self.name,
                worker=self.worker,
                fence=self.fence,
                call_id=call_id,
                bounds=limits,
            )
            for call_id, limits in bounds.items()
        ]
        permits: dict[str, Permit] = {}
        async with self.lock:
            # A call that gave its permit back and begins again in the same commit keeps it.
            self._beside = self._beside.keeping(bounds)
            self._permits |= bounds.keys()
            results = await self.insist(self._store.acquire, wishes)
        for call_id, permit in zip(bounds, results, strict=True):
            if isinstance(permit, Refused):
                raise LaneLost
            permits[call_id] = permit
        return permits

    async def conclude(
        self, transaction: Transaction, records: Sequence[AnyRecord], *, of_newest: bool
    ) -> None:
        """Write records in a tool's own transaction. The caller holds the lane's lock.

        They are folded when they are in the log, not before: the transaction may be
        undone (`TransactionUndone`). So
        it is where they were made `of_newest` slices, and another lane was quicker.
        """
        waiting, before = len(self._buffer), self.head
        apart = self._beside_of(records)
        commit = self._prepare_apart(records, apart, of_newest=of_newest, after=self._buffer)
        try:
            result = await transaction.commit(commit)
        except StoreUnavailable:
            raise LaneLost from None  # only the log knows what became of it: claim it again
        if isinstance(result, Committed):
            self._buffer = self._buffer[waiting:]
        result = self._accept(commit, result, folded=waiting, apart=apart)
        if isinstance(result, Refused):
            self._take_in(result.arrivals)
            await self._look_again()
            raise TransactionUndone(UNDONE if result.reason == "undone" else CONTENDED)
        await self._look_between(before, result)
        if commit.index.changes_slices and self.is_ahead_by(r.StateChanged):
            # Of a call that ended meanwhile: folded before what it will stand after in the log.
            self._order_slices(await self._load())

    def _prepare(
        self,
        records: Sequence[AnyRecord],
        ready_at: int | None = 0,
        release: bool = False,
        beside: CommitDraft | None = None,
    ) -> Commit:
        state = self.state
        beside = self._beside if beside is None else beside
        snapshot, slices = self._snapshots
        return Commit(
            session_id=self.session_id,
            lane=self.name,
            worker=self.worker,
            fence=self.fence,
            number=self.number,
            seen=self.head,
            at=self.now(),
            records=tuple(records),
            body=codec.encode(records),
            index=index(records),
            status=status_of(state),
            turn=state.turn.id if state.turn else "",
            wait=",".join(state.waiting) if release else "",
            tells=bool(state.tells) and any(type_of(record) in state.tells for record in records),
            ready_at=ready_at,
            release=release,
            snapshot=snapshot,
            slices=slices,
            effects=beside.effects,
            frees=beside.frees,
            sends=beside.sends,
        )

    async def _commit(
        self, commit: Commit, *, folded: int | None = None, apart: CommitDraft = NOTHING
    ) -> Committed | Refused:
        before = self.head
        [result] = await self.insist(self._store.commit, [commit])
        while is_only_late(commit, result):
            self._take_in(result.arrivals)
            commit = replace(commit, seen=self.head)
            [result] = await self.insist(self._store.commit, [commit])
        result = self._accept(commit, result, folded=folded, apart=apart)
        if isinstance(result, Committed) and result.first_offset > before + 1:
            await self._look_between(before, result)
        return result

    async def insist(self, ask: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs) -> T:
        """Ask the store for as long as it takes: one that is full or away may come back."""
        pause = 0.05
        while True:
            try:
                return await ask(*args, **named)
            except (StoreUnavailable, StoreFull) as error:
                where = {"session": self.session_id, "lane": self.name}
                why = {"code": error.code, "why": error.message}
                log.warning("the store is away", extra={**where, **why})
                await asyncio.sleep(self._clock.jitter(pause))
                pause = min(pause * 2, 5.0)

    async def _load(self, after: int | None = None) -> Loaded:
        try:
            return await self.insist(self._store.load, self.session_id, self.name, after)
        except UnknownSession:
            raise LaneLost from None  # it was erased

    def _accept(
        self,
        commit: Commit,
        result: Committed | Refused,
        *,
        folded: int | None = None,
        apart: CommitDraft = NOTHING,
    ) -> Committed | Refused:
        """Take in what became of a commit.

        Its first `folded` records, or all, were before; what the others mean is `apart`.
        """
        if isinstance(result, Refused):
            self._tally.refused()
            if result.reason == "lease_lost":
                raise LaneLost
            may_wait = commit.release and result.reason == "arrivals"
            if folded is None and not may_wait:
                raise LaneStale(result.reason)
            return result
        self.number += 1
        self._step_began = self._tally.committed(commit, result.at, self._step_began)
        if self._beside is not NOTHING:
            self._beside = self._beside.without(commit, apart)
        if commit.frees:
            self._permits.difference_update(commit.frees)
        if commit.index.changes_slices:
            self._slices_seen = change_offset(commit.records, result.first_offset)
        if commit.snapshot:
            self._snapshot_size, self._tail = len(commit.snapshot.data), 0
        self._snapshots = (None, None)
        self._tail += len(commit.body)
        self.last_at = result.at
        # Arrivals first: a turn that starts in this commit takes a message that arrived before.
        self._take_in(result.arrivals)
        if folded is not None:
            for record in commit.records[folded:]:
                self._fold(record)
        if self._view:
            self._view.see(commit.records)
        self.head = max(self.head, result.first_offset + len(commit.records) - 1)
        if self._tail > max(SNAPSHOT_OVER, self._snapshot_size) and not self._buffer:
            self._take_snapshots()
        return result

    async def _look_between(self, before: int, result: Committed) -> None:
        """Take in what other lanes of the session shared since; with one lane there is nothing."""
        came = sum(arrival.offset < result.first_offset for arrival in result.arrivals)
        if result.first_offset - before - 1 <= came:
            return
        loaded = await self._load()
        shared = [e for e in loaded.entries if before < e.offset < result.first_offset]
        self.state = fold_all(self.state, (e for e in shared if e.lane != self.name))
        self._order_slices(loaded)
        self._stir()

    def _order_slices(self, loaded: Loaded) -> None:
        """Fold the slices in the order of the log, and then what is not in it yet.

        They may know more than the lane, which is folded up to its `head`.
        """
        self._slices_of(loaded)
        for record in self._buffer:
            if isinstance(record, r.StateChanged):
                self.slices = change(self.slices, record)
        self._snapshots, self._slices_changed = (None, None), True

    def _take_snapshots(self) -> None:
        """Make snapshots of the folds as they are now, to go with the next commit."""
        lane = Snapshot(self.head, FOLD, _encode(self.state))
        slices = None
        if self._slices_changed:
            slices = Snapshot(self.head, FOLD, _encode(self.slices))
            self._slices_changed = False
        self._snapshots = (lane, slices)


def is_only_late(commit: Commit, result: Committed | Refused) -> bool:
    """Say whether a commit may be made as it is, once what has arrived is taken in.

    It closes a request that was answered meanwhile, and nothing waits for the answer any more.
    Only of a request that has run out of time it is said too early.
    """
    if isinstance(result, Committed) or commit.release or not result.arrivals:
        return False
    return all(closed.how != "expired" for closed in commit.index.closed)
