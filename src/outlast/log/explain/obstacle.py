"""Explains why calls that could begin do not: a limit without room, a budget, another call's key.

Owns the sentences about what other lanes and sessions hold. What a lane waits for by itself is in
`turn.py`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.amount import DAILY, BudgetState
from outlast.core.breaker import is_line
from outlast.core.budget import figure, in_order, keys_of, nearly_taken, next_day
from outlast.core.instant import date_of
from outlast.core.lane import BUDGET, Lane, OpenCall, Turn
from outlast.core.name import turn_and_step
from outlast.core.queue import line_of, queue_of
from outlast.log.explain.evidence import ExplainEvidence
from outlast.log.explain.link import Cause
from outlast.store import LaneInfo, PermitInfo

MOST_NAMED = 3
"""Calls in the way that are named; the rest is counted."""


def the_permits(info: LaneInfo, lane: Lane, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name each limit that a call of the lane waits for, and the calls that hold its permits."""
    for permit in evidence.permits:
        if permit.lane != info.lane or permit.held or is_line(permit.name):
            continue
        if queue := queue_of(permit.name):
            yield in_queue(queue, permit, info, lane, evidence)
            continue
        is_rate = permit.name.endswith(":rate") and not permit.name.startswith("mutex:")
        awaited = "its next start under the rate" if is_rate else "a place under the limit"
        behind = f", behind {permit.ahead}" if permit.ahead else ""
        turn, step = turn_and_step(permit.call_id)
        yield Cause(
            kind="permit",
            text=f"{whose(permit, lane)} waits for {awaited} {permit.name}"
            + behind
            + held_by(permit.name, evidence),
            since=rests_since(info, lane, "limit", evidence),
            until=info.ready_at if is_rate else None,
            turn=turn,
            step=step,
            call=permit.call_id,
        )


def in_queue(
    queue: str, permit: PermitInfo, info: LaneInfo, lane: Lane, evidence: ExplainEvidence
) -> Cause:
    """Say which place in its queue a turn has, in which of the queue's lines."""
    turn, _ = turn_and_step(permit.call_id)
    kind, _, which = permit.name.removeprefix(f"{line_of(queue)}:").partition(":")
    lines = {
        "key": " among those with its key",
        "worker": " in one worker",
        "rate": " under its rate",
    }
    return Cause(
        kind="permit",
        text=f"turn {turn} waits for the queue {queue}, place {permit.ahead + 1}"
        + (lines.get(kind, "") if which else "")
        + held_by(permit.name, evidence),
        since=rests_since(info, lane, "queue", evidence),
        until=info.ready_at,
        turn=turn,
    )


def the_budgets(info: LaneInfo, lane: Lane, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name each budget of which there is too little left, where the lane waits for one."""
    if BUDGET not in lane.waiting:
        return
    keys = {key if not key.day else replace(key, day=DAILY) for key in keys_of(lane)}
    for state in in_order(evidence.budgets):
        key = replace(state.key, day=DAILY) if state.key.day else state.key
        # A call's reservation is not known here: what is left of a fifth may be too little.
        if key not in keys or not (what := nearly_taken(state)):
            continue
        until = next_day([state.key])
        spent = figure(what, getattr(state.spent, what))
        held = figure(what, getattr(state.reserved, what))
        yield Cause(
            kind="budget",
            text=f"it waits for {state.key.text}: of {figure(what, limit_of(state, what))} {spent}"
            f" are spent and {held} reserved by calls under way",
            since=rests_since(info, lane, BUDGET, evidence),
            until=date_of(until) if until else None,
        )


def limit_of(state: BudgetState, what: str) -> int:
    return int(getattr(state.terms.limits, what))


def whose(permit: PermitInfo, lane: Lane) -> str:
    call = lane.turn.calls.get(permit.call_id) if lane.turn else None
    return f"the tool {call.tool}" if call else f"the model call {permit.call_id}"


def held_by(name: str, evidence: ExplainEvidence) -> str:
    holders = [f"{p.session_id} {p.call_id}" for p in evidence.holders if p.name == name]
    return f", held by {naming(holders)}" if holders else ""


def the_key(
    info: LaneInfo, turn: Turn, call: OpenCall, evidence: ExplainEvidence
) -> Iterator[Cause]:
    """Name the other call that has the idempotency key of one that could begin."""
    is_ready = call.status == "approved" or (call.status == "requested" and not call.asks)
    held = evidence.keys.get(call.dedupe) if is_ready and call.dedupe else None
    if held is None or (held.session_id, held.call_id) == (info.session_id, call.call_id):
        return
    yield Cause(
        kind="key",
        text=f"the tool {call.tool} waits for the call {held.call_id} of {held.session_id},"
        f" which has its key {held.key}",
        since=rests_since(info, evidence.states[info.lane], "key", evidence),
        turn=turn.id,
        step=turn.step,
        call=call.call_id,
    )


def rests_since(
    info: LaneInfo, lane: Lane, kind: str, evidence: ExplainEvidence
) -> datetime | None:
    """Return since when a lane rests for what is of a kind; None if other calls of it run."""
    if kind not in lane.waiting:
        return None
    return evidence.when(info.lane, r.SessionWaiting, wait=lane.waiting)


def naming(names: Sequence[str]) -> str:
    """Name the first of some, and count the others."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
