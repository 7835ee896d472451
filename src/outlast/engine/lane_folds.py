"""The folds of a lane's log: its state, its session's slices, and the model's view.

Owns loading, catching up with what others wrote, and snapshots. Refuses to write: `owned_lane.py`
does, and says here what was written. The folds themselves are pure: `core/fold.py`,
`core/view.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import ParamSpec, TypeVar

import msgspec

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.fold import ARRIVALS, fold, fold_all
from outlast.core.index import change_offset
from outlast.core.lane import FOLD, Lane
from outlast.core.record import AnyRecord, Entry
from outlast.core.slice import EMPTY, STATE_RECORDS, Slices, change, change_all
from outlast.core.view import View, view_of
from outlast.errors import CursorAhead, StoreFull, StoreUnavailable, UnknownSession
from outlast.log.snapshot import FoldStart, load_start
from outlast.log_context import get_logger
from outlast.store import Commit, Committed, FoldSnapshot, Loaded, LogPage, Store

log = get_logger("outlast.engine")

P = ParamSpec("P")
T = TypeVar("T")

CHANGES = frozenset(STATE_RECORDS)
ENDS = (r.SessionCompleted, r.SessionFailed, r.SessionEnded)

SNAPSHOT_OVER = 64 * 1024
"""Bytes of log after the last snapshot from which on another is made."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0

_encode = msgspec.msgpack.Encoder().encode


class LaneLost(BaseException):
    """Another worker owns the lane. Not an Exception, so that users' code cannot swallow it."""


class HistoryChanged(LaneLost):
    """The log is not the one that was folded: the database has lost a part of it, as a standby that
    was behind does when it is promoted. All that is in memory has to be read anew."""


class LaneStale(BaseException):
    """The folded records could not be written, since an arrival came first: fold the log again."""


async def insist(
    clock: Clock, ask: Callable[P, Awaitable[T]], *args: P.args, **named: P.kwargs
) -> T:
    """Ask the store for as long as it takes: one that is full or away may come back."""
    pause = FIRST_PAUSE
    while True:
        try:
            return await ask(*args, **named)
        except (StoreUnavailable, StoreFull) as error:
            log.warning("the store is away", extra={"code": error.code, "why": error.message})
            await asyncio.sleep(clock.jitter(pause))
            pause = min(pause * 2, LONGEST_PAUSE)


class LaneFolds:
    """One lane's folds.

    They cover the log up to the offset `head`, whose row has the `checksum`, and then the `pending`
    records that several methods are given: those the lane's owner has written and not yet
    committed. `arrivals` grows with everything that others wrote and that is folded in: a decision
    made before is out of date.
    `wakeup` is set at the same time, and whenever else the lane's runner has to look.
    """

    def __init__(self, session_id: str, name: str, store: Store, clock: Clock) -> None:
        self.session_id = session_id
        self.name = name
        self.state = Lane(session=session_id, name=name)
        self.slices: Slices = EMPTY
        self.head = 0
        self.checksum = ""
        self.arrivals = 0
        self.last_at = 0
        self.wakeup = asyncio.Event()
        self.is_outline = False
        """Whether large values were left out: good enough to end a turn, and for nothing else."""
        self.snapshots: tuple[FoldSnapshot | None, FoldSnapshot | None] = (None, None)
        """Of the state and of the slices, to go with the next commit."""
        self.slices_seen = 0
        """The offset up to which all changes of slices are folded; it may be past `head`."""
        self._view: View | None = None
        self._tail = 0
        self._snapshot_size = 0
        self._was_damaged = False
        self._slices_changed = False
        self._store = store
        self._clock = clock

    # Loading

    async def load(self) -> None:
        """Fold the lane from its snapshot and its log."""
        found = await load_start(self._load, self.session_id, self.name)
        if found.was_damaged:
            await insist(self._clock, self._store.log.drop_snapshots, self.session_id)
        loaded, start = found.loaded, found.offset
        if found.state:
            self.state = found.state
            self._snapshot_size = len(loaded.snapshot.data) if loaded.snapshot else 0
        else:
            self._view = view_of(loaded.entries, self.name)
        # The entries begin at the older of the two snapshots, that of the lane or that of the
        # slices.
        self.state = fold_all(self.state, (e for e in loaded.entries if e.offset > start))
        self._fold_slices(found)
        self.head, self.checksum = start, loaded.checksum
        if loaded.entries and loaded.entries[-1].offset > start:
            self._move_to(loaded.entries[-1])
        self._tail, self._was_damaged = loaded.tail_bytes, found.was_damaged
        self.last_at = loaded.last_at

    def _move_to(self, last: Entry) -> None:
        self.head, self.checksum = last.offset, last.checksum

    async def load_outline(self) -> None:
        """Fold the lane page by page and without large values, as a worker of any size can.

        A session may be so large that reading it takes a worker down. Its turn can still be failed.
        """
        self.is_outline = True
        while True:
            try:
                page = await insist(
                    self._clock, self._store.log.read, self.session_id, self.head, large=False
                )
            except UnknownSession:
                # Erasing has raised the fence: whatever this worker wrote would be refused.
                raise LaneLost from None  # it was erased
            if not page.entries:
                return
            self.state = fold_all(self.state, page.entries)
            self._move_to(page.entries[-1])
            self.last_at = page.entries[-1].at

    def forget(self) -> None:
        """Forget everything, so that the lane can be loaded again."""
        self.state = Lane(session=self.session_id, name=self.name)
        self.slices, self._view, self.snapshots = EMPTY, None, (None, None)
        self.is_outline = False

    async def _load(self, after: int | None = None) -> Loaded:
        try:
            return await insist(
                self._clock, self._store.log.load, self.session_id, self.name, after
            )
        except UnknownSession:
            raise LaneLost from None  # it was erased

    def _fold_slices(self, found: FoldStart) -> None:
        """Fold the session's slices from their snapshot and what followed."""
        entries, start = found.loaded.entries, found.slices_offset
        self.slices = change_all(found.slices, (e for e in entries if e.offset > start))
        self._note_changes(start, entries)
        self._slices_changed = self._slices_changed or found.was_damaged

    def _note_changes(self, seen: int, entries: Iterable[Entry]) -> None:
        changes = [e.offset for e in entries if isinstance(e.record, STATE_RECORDS)]
        self.slices_seen = max([self.slices_seen, seen, *changes])

    # Records that others wrote

    async def catch_up(self, pending: Sequence[AnyRecord]) -> None:
        """Fold in what has arrived since the last look."""
        loaded = await self._load_on()
        # Only its owner writes anything but arrivals to a lane: such a record is a new owner's.
        mine = (e for e in loaded.entries if e.lane == self.name and e.offset > self.head)
        # Without this look, an owner that was passed over would fold what its successor has done as
        # its own.
        if any(type(entry.record) not in ARRIVALS for entry in mine):
            raise LaneLost
        seen = self.slices_seen
        self.take_in(loaded.entries, pending)
        # Pending changes were folded before these, and come after them in the log.
        if self.slices_seen > seen and changes_slices(pending):
            await self.reorder_slices(pending)

    async def _load_on(self) -> Loaded:
        """Return what follows `head`, if what is there is still what was folded."""
        loaded = await self._load(after=self.head)
        if loaded.checksum != self.checksum:
            raise HistoryChanged
        return loaded

    async def confirm(self) -> None:
        """Raise HistoryChanged unless all that was folded is certainly in the log as it is now."""
        await self._load_on()
        if self.slices_seen > self.head:  # folded ahead of `head`, and not named by its checksum
            raise HistoryChanged

    def take_in(self, entries: Iterable[Entry], pending: Sequence[AnyRecord]) -> None:
        """Fold in entries that others wrote."""
        for entry in entries:
            if entry.offset <= self.head:
                continue
            if type(entry.record) in ENDS and any(type(record) in ENDS for record in pending):
                raise LaneStale("over")  # a session ends once, and another lane was quicker
            self.state = fold_all(self.state, (entry,))
            if entry.offset > self.slices_seen:
                self.slices = change_all(self.slices, (entry,))
                self._note_changes(0, (entry,))
            # A view that was not asked for yet is read from the log when it is.
            if self._view and entry.lane == self.name:
                self._view.see((entry.record,), entry.offset)
            self._move_to(entry)
            self._note_arrival()

    def _note_arrival(self) -> None:
        self.arrivals += 1
        self.wakeup.set()

    async def look_between(
        self, before: int, result: Committed, pending: Sequence[AnyRecord]
    ) -> None:
        """Fold in what other lanes of the session wrote between two commits of this one."""
        # Offsets are the session's: a gap that this lane's arrivals do not fill is another lane's.
        came = sum(arrival.offset < result.first_offset for arrival in result.arrivals)
        if result.first_offset - before - 1 <= came:
            return
        if self.is_outline:
            entries = (await self._load(after=before)).entries
        else:
            # From the snapshot on, not from `before`: `update` and `append` of two lanes come to
            # something else in another order.
            found = await load_start(self._load, self.session_id, self.name)
            self._reorder(found, pending)
            entries = found.loaded.entries
        shared = [e for e in entries if before < e.offset < result.first_offset]
        self.state = fold_all(self.state, (e for e in shared if e.lane != self.name))
        self._note_arrival()

    async def catch_up_slices(self) -> None:
        """Fold in what other lanes of the session have changed since the last look."""
        loaded = await self._load(after=self.slices_seen)
        changes = [e for e in loaded.entries if e.offset > self.slices_seen]
        if changes:
            self.slices = change_all(self.slices, changes)
        self._note_changes(0, changes)
        self._slices_changed = True

    async def reorder_slices(self, pending: Sequence[AnyRecord]) -> None:
        """Fold the slices anew in the order of the log, and then what is not in it yet."""
        self._reorder(await load_start(self._load, self.session_id, self.name), pending)

    def _reorder(self, found: FoldStart, pending: Sequence[AnyRecord]) -> None:
        self._fold_slices(found)
        for record in pending:
            if isinstance(record, STATE_RECORDS):
                self.slices = change(self.slices, record)
        self.snapshots, self._slices_changed = (None, None), True

    # Records that the owner wrote

    def fold(self, records: Sequence[AnyRecord]) -> None:
        """Fold in records of the lane's owner."""
        state = self.state
        for record in records:
            state = fold(state, record)
        self.state = state
        if not CHANGES.isdisjoint(map(type, records)):
            for record in records:
                if isinstance(record, STATE_RECORDS):
                    self.slices = change(self.slices, record)
            self._slices_changed = True

    def land(
        self,
        commit: Commit,
        result: Committed,
        unfolded: Sequence[AnyRecord],
        pending: Sequence[AnyRecord],
    ) -> None:
        """Note that a commit is in the log, and fold its `unfolded` records."""
        if commit.index.changes_slices:
            # Its own changes are folded already, and must not be folded again as another lane's.
            self.slices_seen = change_offset(commit.records, result.first_offset)
        if commit.snapshot:
            self._snapshot_size, self._tail = len(commit.snapshot.data), 0
        self.snapshots = (None, None)
        self._tail += len(commit.body)
        self.last_at = result.at
        # Arrivals first: a turn that starts in this commit takes a message that arrived before.
        if result.arrivals:
            self.take_in(result.arrivals, pending)
        if unfolded:
            self.fold(unfolded)
        if self._view:
            self._view.see(commit.records, result.first_offset)
            # It goes back to messages that it has dropped. The next call of the model reads it
            # anew.
            if self._view.rewinds and self._view.is_outdated:
                self._view = None
        if commit.records and (last := result.first_offset + len(commit.records) - 1) > self.head:
            self.head, self.checksum = last, result.checksum
        # In proportion to the last snapshot: so all snapshots together cost no more than the log.
        is_due = self._was_damaged or self._tail > max(SNAPSHOT_OVER, self._snapshot_size)
        # A snapshot must not hold what is not in the log yet.
        if is_due and not pending and not self.is_outline:
            self._take_snapshots()

    def _take_snapshots(self) -> None:
        lane = FoldSnapshot(self.head, FOLD, _encode(self.state))
        slices = None
        if self._slices_changed:
            slices = FoldSnapshot(self.head, FOLD, _encode(self.slices))
            self._slices_changed = False
        self.snapshots, self._was_damaged = (lane, slices), False

    # The model's view

    async def view(self) -> View:
        """Return what the model sees; it is read from the log once, and then kept up to date."""
        if self._view is None:
            self._view = await self._read_view()
        return self._view

    async def view_at(self, until: int) -> View:
        """Return what the model saw at an offset of the past."""
        view = await self.view()
        # Those after `until` belong to a later view than the one that is asked for.
        past = View(rewinds=[each for each in view.rewinds if each[0] <= until])
        await self._show(past, until)
        return past

    async def _read_view(self) -> View:
        view = View()
        await self._show(view)
        # A rewind may be met while the log is read: then it is read once more, knowing of that one.
        while view.is_outdated:
            view = View(rewinds=view.rewinds)
            await self._show(view)
        return view

    async def _show(self, view: View, until: int | None = None) -> None:
        """Show a view the lane's log up to an offset, or to `head`.

        That may move on meanwhile: later records are shown it. What other lanes wrote is passed
        over, so the last entry read may stand before the end: then the log is asked what stands
        there.
        """
        cursor, checksum = 0, ""
        while cursor < (head := self.head if until is None else until):
            page = await self._read(cursor, self.name)
            entries = [e for e in page.entries if e.offset <= head]
            # A page begins behind an offset whose row this has seen: another checksum is another
            # history.
            if page.checksum != checksum:
                raise HistoryChanged
            if entries:
                view.see_all(entries, self.name)
                cursor, checksum = entries[-1].offset, entries[-1].checksum
            else:
                cursor, checksum = head, (await self._read(head)).checksum
            if cursor == self.head and checksum != self.checksum:
                raise HistoryChanged

    async def _read(self, after: int, lane: str | None = None) -> LogPage:
        """Read a page of the log behind something that was in it."""
        read = self._store.log.read
        try:
            return await insist(self._clock, read, self.session_id, after, lane=lane)
        except CursorAhead:
            raise HistoryChanged from None


def changes_slices(records: Iterable[AnyRecord]) -> bool:
    return not CHANGES.isdisjoint(map(type, records))
