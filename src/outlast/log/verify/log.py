"""Reads a session's log once from its start, holds the rules against it, and folds it.

A lane whose record cannot be folded is left as it was: what follows in that lane would only
repeat the same finding. The rules are in `rule.py`.
"""

from collections.abc import Collection, Iterator

import msgspec
from msgspec import Struct

from outlast.core import record as r
from outlast.core.fold import SESSION_WIDE, fold
from outlast.core.lane import Lane
from outlast.core.slice import EMPTY, STATE_RECORDS, Slices, change, is_log
from outlast.log.verify.context_rule import ContextOffsets
from outlast.log.verify.rule import Finding, Wrong, broken_rules

Attempt = tuple[str, int]

_encode = msgspec.msgpack.Encoder().encode


class Deltas(Struct):
    """The streamed part of one attempt: where it begins, and of which parts."""

    first_offset: int
    parts: set[int]


class LaneLog:
    """One lane's part of the log."""

    def __init__(self, session_id: str, name: str) -> None:
        self.state = Lane(session=session_id, name=name)
        self.is_broken = False
        self.count = 0
        self.size = 0
        """Of the records alone: each commit adds the head of an array."""
        self.is_converted = False
        """Whether records of an older format are among them, which were of another size."""
        self._settled: dict[str, bool] = {}
        self._deltas: dict[Attempt, Deltas] = {}
        self._fence = 0
        self._done_step = ""
        self._context = ContextOffsets()

    def add(self, entry: r.Entry, slices: Slices) -> Iterator[Wrong]:
        """Take in an entry of this lane, and yield what is wrong with it.

        `slices` are those of the session before it.
        """
        if self.is_broken:
            return
        record = entry.record
        self.count += 1
        self.size += len(_encode(record))
        self.is_converted = self.is_converted or entry.version < r.FORMAT
        yield from broken_rules(self.state, record)
        yield from self._deliveries(record)
        yield from self._stream(record, entry.offset)
        yield from self._owners(record)
        yield from self._steps(record)
        yield from self._context.add(record, entry.offset, self.state, slices)
        yield from self.fold(entry)

    def fold(self, entry: r.Entry) -> Iterator[Wrong]:
        try:
            self.state = fold(self.state, entry.record, entry.offset)
        except Exception as error:  # noqa: BLE001 - a damaged log may break the fold in any way
            self.is_broken = True
            yield "NOT_FOLDABLE", f"the lane cannot be folded any further: {error!r}"

    def _deliveries(self, e: r.AnyRecord) -> Iterator[Wrong]:
        match e:
            case (
                r.DeliveryQueued()
                | r.CancelRequested()
                | r.RequestRelayed()
                | r.StateChangeRequested()
                | r.ContextChangeRequested()
                | r.EventSent()
            ):
                if e.delivery_id in self._settled:
                    yield "QUEUED_TWICE", f"{e.delivery_id} arrives again"
                self._settled[e.delivery_id] = False
            case r.DeliverySettled():
                if e.delivery_id not in self._settled:
                    yield "UNKNOWN_DELIVERY", f"{e.delivery_id} is settled, and never arrived"
                elif self._settled[e.delivery_id]:
                    yield "SETTLED_TWICE", f"{e.delivery_id} is settled again"
                self._settled[e.delivery_id] = True

    def _stream(self, e: r.AnyRecord, offset: int) -> Iterator[Wrong]:
        match e:
            case r.MessageDelta() | r.ReasoningDelta():
                seen = self._deltas.setdefault((e.call_id, e.attempt), Deltas(offset, set()))
                seen.parts |= {e.part} if e.text else set()
            case r.MessageCompleted():
                yield from missing_deltas(e, self._deltas.get((e.call_id, e.attempt)))
                # Of attempts that came to nothing there may be more: an answer ends them all.
                self._deltas.clear()

    def _owners(self, e: r.AnyRecord) -> Iterator[Wrong]:
        if isinstance(e, r.LaneTakenOver):
            if e.fence < self._fence:
                yield "FENCE_WENT_BACK", f"fence {e.fence} follows on fence {self._fence}"
            self._fence = e.fence

    def _steps(self, e: r.AnyRecord) -> Iterator[Wrong]:
        """A step that is past was completed: that is when the model is told its results."""
        match e:
            case r.StepCompleted():
                self._done_step = f"{e.turn} {e.step}"
            case r.StepStarted(step=step) if step > 1 and self._done_step != f"{e.turn} {step - 1}":
                yield "STEP_LEFT_OPEN", f"step {step} starts, and the one before did not end"
            case r.TurnCompleted():
                step = self.state.turn.step if self.state.turn else 0
                if self._done_step != f"{e.turn} {step}":
                    yield "STEP_LEFT_OPEN", f"{e.turn} ends, and its step {step} did not"


def missing_deltas(e: r.MessageCompleted, seen: Deltas | None) -> Iterator[Wrong]:
    """Look for the streamed text that an answer points at instead of holding it."""
    if not e.streamed:
        return
    if seen is None or not 0 < e.deltas_from <= seen.first_offset:
        yield "DELTAS_MISSING", f"the text of {e.call_id} is not there from {e.deltas_from} on"
        return
    if lost := set(e.streamed) - seen.parts:
        yield "DELTAS_MISSING", f"{e.call_id} has no text for its parts {sorted(lost)}"


class SessionLog:
    """The whole log. `marks` are the offsets at which the folds are kept to be compared."""

    def __init__(self, session_id: str, marks: Collection[int] = ()) -> None:
        self.session_id = session_id
        self.lanes: dict[str, LaneLog] = {}
        self.slices: Slices = EMPTY
        self.started: r.Entry | None = None
        self.ended: r.Entry | None = None
        self.anchored: list[r.Entry] = []
        self.last: r.Entry | None = None
        self.findings: list[Finding] = []
        self.kept: dict[int, tuple[dict[str, Lane], Slices]] = {}
        self._marks = set(marks)

    def add(self, entry: r.Entry) -> None:
        """Take in the next entry."""
        self._note(entry, self._place(entry))
        lane = self.lanes.get(entry.lane)
        if lane is None:
            lane = self.lanes[entry.lane] = LaneLog(self.session_id, entry.lane)
            # A lane that begins later has the session's start before its own first record, as in a
            # worker.
            if self.started:
                self._note(entry, lane.fold(self.started))
        self._note(entry, lane.add(entry, self.slices))
        self._note(entry, self._state(entry))
        self._share(entry, lane)
        self.last = entry
        if entry.offset in self._marks:
            states = {name: log.state for name, log in self.lanes.items() if not log.is_broken}
            self.kept[entry.offset] = (states, self.slices)

    def _place(self, entry: r.Entry) -> Iterator[Wrong]:
        due = self.last.offset + 1 if self.last else 1
        if entry.offset != due:
            yield "OFFSET_OUT_OF_ORDER", f"offset {entry.offset} stands where {due} is due"
        if self.last and entry.at < self.last.at:
            yield "TIME_WENT_BACK", f"this was written at {entry.at}, after {self.last.at}"
        if isinstance(entry.record, r.SessionStarted) != (entry.offset == 1):
            yield "NO_START", "a session starts with its first record, and only there"

    def _state(self, entry: r.Entry) -> Iterator[Wrong]:
        """Look at a change of slices: is it one that follows on what there is?"""
        match entry.record:
            case r.StateRolledBack() as e:
                busy = [n for n, log in self.lanes.items() if n != entry.lane and log.state.turn]
                if busy:
                    lanes = ", ".join(busy)
                    yield "TURN_ROLLED_BACK", f"state is rolled back in an open turn of {lanes}"
                if lost := [name for name in e.slices if is_log(self.slices, name)]:
                    yield "LOG_REWRITTEN", f"the log {', '.join(lost)} is rolled back"
            case r.StateChanged(op="append"):
                return
            case r.StateChanged() as e if is_log(self.slices, e.slice):
                yield "LOG_REWRITTEN", f"the log {e.slice} is changed otherwise than by appending"

    def _share(self, entry: r.Entry, origin: LaneLog) -> None:
        """Let all lanes know what concerns them all."""
        record = entry.record
        if isinstance(record, STATE_RECORDS):
            self.slices = change(self.slices, record)
        if isinstance(record, r.SessionRekeyed) and record.outbox:
            self.anchored.append(entry)
        if not isinstance(record, SESSION_WIDE):
            return
        if isinstance(record, r.SessionStarted):
            self.started = self.started or entry
        else:
            self.ended = self.ended or entry
        for lane in self.lanes.values():
            if lane is not origin and not lane.is_broken:
                self._note(entry, lane.fold(entry))

    @property
    def outbox(self) -> list[r.NewOutboxCursor]:
        """The cursors that the session was given since its start, the newest first."""
        records = [each.record for each in reversed(self.anchored)]
        return [c for e in records if isinstance(e, r.SessionRekeyed) for c in e.outbox]

    def _note(self, entry: r.Entry, wrongs: Iterator[Wrong]) -> None:
        for code, message in wrongs:
            self.findings.append(
                Finding(
                    session_id=self.session_id,
                    code=code,
                    message=message,
                    offset=entry.offset,
                    lane=entry.lane,
                )
            )
