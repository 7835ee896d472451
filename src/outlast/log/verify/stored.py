"""Compares sessions, lanes and snapshots as they are stored with what the log says of them.

Also finds work that no claim would find: a lane without an owner that has something to do. The
other indexes are compared in `index.py`; the log's own soundness is `log.py`'s affair.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from outlast.core import record as r
from outlast.core.fold import fold_all
from outlast.core.index import status_of
from outlast.core.instant import date_of
from outlast.core.lane import BUDGET, Lane
from outlast.core.slice import EMPTY, KeptSlice, change_all
from outlast.log.verify.index import Indexes, differences
from outlast.log.verify.log import LaneLog, SessionLog
from outlast.log.verify.rule import Wrong, left_to_do
from outlast.store import (
    FailureInfo,
    FoldSnapshot,
    LaneInfo,
    Loaded,
    OutboxCursor,
    PermitInfo,
    SessionInfo,
)

LIVELIEST_FIRST = ("running", "queued", "waiting", "sleeping", "failed", "idle")


def wrong_session(info: SessionInfo, log: SessionLog, indexes: Indexes) -> Iterator[Wrong]:
    stored = msgspec.structs.asdict(info)
    due: dict[str, Any] = {"over": indexes.over}
    statuses = {lane.status for lane in info.lanes}
    liveliest = next((status for status in LIVELIEST_FIRST if status in statuses), "idle")
    due["status"] = indexes.over or liveliest
    living = [token for token, lives in indexes.tokens.items() if lives]
    if bool(info.token) != bool(living) or info.token not in (*living[-1:], ""):
        yield "SESSION_INDEX", "the session's continuation token is not its newest living one"
    if log.started and isinstance(started := log.started.record, r.SessionStarted):
        due |= {"agent": started.agent, "mode": started.mode, "tenant": started.tenant}
        due["created_at"] = date_of(log.started.at)
        due["tags"] = started.tags
        due["parent"] = started.parent.session_id if started.parent else ""
    if log.last:
        due["updated_at"] = date_of(log.last.at)
    yield from differences("SESSION_INDEX", "session", due, stored)


def wrong_cursors(log: SessionLog, found: Sequence[OutboxCursor]) -> Iterator[Wrong]:
    """Compare outbox cursors with those that the session was given: at its start, or since."""
    started = log.started.record if log.started else None
    due = started.outbox if isinstance(started, r.SessionStarted) else ()
    given = {each.name: each for each in (*log.outbox, *due)}  # it keeps the first of a name
    known = {(each.name, each.url, each.events) for each in given.values()}
    stored = {(each.name, each.url, each.events) for each in found}
    for name in sorted({name for name, *_ in known ^ stored}):
        yield "OUTBOX_INDEX", f"outbox cursor {name} is not as the session was given it"
    end = log.last.offset if log.last else 0
    for cursor in found:
        if cursor.position > end:
            yield (
                "OUTBOX_INDEX",
                f"outbox cursor {cursor.name} has told up to {cursor.position} of {end}",
            )


def wrong_lane(
    info: LaneInfo, lane: Lane, queued: int, failure: FailureInfo | None
) -> Iterator[Wrong]:
    due = {
        "status": status_of(lane),
        "turn": lane.turn.id if lane.turn else "",
        "queued": queued,
        "failure": failure,
    }
    yield from differences("LANE_INDEX", f"lane {info.lane}", due, msgspec.structs.asdict(info))


LONGEST_HEAD = 5
"""Bytes that a commit has besides its records: an array says how many they are."""


def wrong_size(info: LaneInfo, log: LaneLog) -> Iterator[Wrong]:
    """Compare how large a lane is said to be with its records."""
    if not log.is_converted and not log.size < info.size <= log.size + LONGEST_HEAD * log.count:
        yield "LANE_INDEX", f"lane {info.lane}: size is {info.size}; its records have {log.size}"


ENDED_BY_OTHERS = frozenset({"children", "callback", "event", BUDGET})
"""Waits that may have no time of their own: something arrives, or comes back to a budget, and that
makes the lane ready."""


def stuck(info: LaneInfo, lane: Lane, permits: Sequence[PermitInfo]) -> Iterator[Wrong]:
    """Look for work in a lane that has no owner and that no claim would find."""
    if info.worker or info.ready_at is not None:
        return
    awaited = [permit for permit in permits if permit.lane == info.lane and not permit.held]
    if awaited and ("limit" in lane.waiting or "queue" in lane.waiting):
        return
    if lane.over and (lane.turn or lane.queue):
        yield "STUCK", "the session is over, and nothing makes the lane settle what it has left"
    elif left := left_to_do(lane, lane.waiting if BUDGET in lane.waiting else ()):
        yield "STUCK", f"{', '.join(left)} waits, and nothing makes the lane ready"
    elif not ENDED_BY_OTHERS.isdisjoint(lane.waiting):
        return
    elif lane.turn and status_of(lane) in ("running", "sleeping"):
        yield "STUCK", f"turn {lane.turn.id} could go on by itself, and nothing makes it ready"


def wrong_load(loaded: Loaded, lane: Lane, log: SessionLog) -> Iterator[Wrong]:
    """Compare what a worker would load of a lane with what the log folds into."""
    if loaded.damaged:
        yield "SNAPSHOT", f"a snapshot cannot be read: {loaded.damaged}"
        return
    start, state = 0, Lane(session=lane.session, name=lane.name)
    if snapshot := loaded.snapshot:
        states, _ = log.kept.get(snapshot.offset, ({}, EMPTY))
        start, state = snapshot.offset, decoded(snapshot, Lane)
        if state is None or state != states.get(lane.name):
            yield "SNAPSHOT", f"the snapshot at {start} is not what the log folds into up to there"
            return
    try:
        state = fold_all(state, (e for e in loaded.entries if e.offset > start))
    except Exception as error:  # noqa: BLE001 - entries that are left out may break it in any way
        yield "LOAD", f"a worker could not fold what it would load: {error!r}"
        return
    if state != lane:
        yield "LOAD", "a worker would load another state than the log folds into"


def wrong_slices(loaded: Loaded, log: SessionLog) -> Iterator[Wrong]:
    """Compare the slices that a worker would load with those of the log."""
    if loaded.damaged:
        return
    start, slices = 0, EMPTY
    if snapshot := loaded.slices:
        _, kept = log.kept.get(snapshot.offset, ({}, EMPTY))
        start, slices = snapshot.offset, decoded(snapshot, dict[str, KeptSlice])
        if slices is None or slices != kept:
            yield "SLICES", f"the slices kept at {start} are not what the log says up to there"
            return
    if change_all(slices, (e for e in loaded.entries if e.offset > start)) != log.slices:
        yield "LOAD", "a worker would load other slices than the log says"


def decoded(snapshot: FoldSnapshot, kind: Any) -> Any:
    """Return what a snapshot holds, or None if it cannot be read."""
    try:
        return msgspec.msgpack.decode(snapshot.data, type=kind)
    except msgspec.MsgspecError:
        return None
