"""Explains a session lane by lane: how it ended, its owner, its waits, its queue.

Owns the order in which causes are told. What an open turn waits for is in `turn.py`, who owns a
lane in `owner.py`; what they go by is gathered by `evidence.py`.
"""

from collections.abc import Iterator
from datetime import timedelta

from outlast.core import record as r
from outlast.core.compaction import size_of
from outlast.core.instant import date_of
from outlast.core.lane import Lane, Turn
from outlast.core.name import MAIN, OF_CHANNEL
from outlast.core.usage import in_figures
from outlast.log.explain.evidence import ExplainEvidence
from outlast.log.explain.link import Cause, Explanation, LaneExplanation, sentence
from outlast.log.explain.obstacle import naming, the_budgets, the_permits
from outlast.log.explain.owner import who_carries
from outlast.log.explain.turn import within_turn
from outlast.store import ANYONE, WAIT_THEIR_TURN, LaneInfo, Pin

SOON_TOLD = timedelta(minutes=1)
"""An event that is due for longer is looked at by no process: each looks every few seconds."""
MOST_QUEUED = 5
"""So many waiting messages are named; the rest is counted."""


def explain(evidence: ExplainEvidence) -> Explanation:
    """Say of each lane why it stands where it stands."""
    session = evidence.session
    return Explanation(
        session_id=session.session_id,
        agent=session.agent,
        status=session.status,
        at=evidence.now,
        lanes=tuple(
            LaneExplanation(
                lane=info.lane,
                status=info.status,
                links=(
                    *explain_lane(info, evidence.states[info.lane], evidence),
                    *(what_is_not_told(evidence) if info.lane == MAIN else ()),
                ),
            )
            for info in session.lanes
        ),
    )


def explain_lane(info: LaneInfo, lane: Lane, evidence: ExplainEvidence) -> Iterator[Cause]:
    if evidence.session.over:
        yield from how_it_ended(evidence)
        if lane.turn is None and not info.queued:
            return
    turn = lane.turn
    if turn:
        started = evidence.when(info.lane, r.TurnStarted, turn=turn.id)
        text = f"turn {turn.id} is open, in step {turn.step}"
        yield Cause(kind="turn", text=text, since=started, turn=turn.id, step=turn.step)
        yield from on_which_deployment(info, turn, evidence)
        yield from what_it_used(turn)
    if turn or info.queued or info.worker:
        yield from who_carries(info, evidence)
    yield from what_has_arrived(lane)
    if turn:
        yield from within_turn(info, turn, evidence)
    elif not info.queued:
        yield from at_rest(lane, evidence)
    if lane.starts_at and date_of(lane.starts_at) > evidence.now:
        text = "its first turn begins after its delay"
        yield Cause(kind="timer", text=text, until=date_of(lane.starts_at))
    yield from what_is_seen(info, lane, evidence)
    yield from the_permits(info, lane, evidence)
    yield from the_budgets(info, lane, evidence)
    yield from queue(info, evidence)


def what_is_seen(info: LaneInfo, lane: Lane, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Say how the model's view of the lane was changed, and what changes are still to be made."""
    context, turn = lane.context, lane.turn.id if lane.turn else ""
    if lane.back_to:
        text = f"the model sees it as it was behind turn {lane.back_to}, and what came since"
        yield Cause(kind="context", text=text, turn=lane.back_to)
    elif context.floor:
        done = evidence.when(info.lane, r.CompactionCompleted)
        text = (
            f"the model's view was made shorter, to {context.floor:,} tokens; about"
            f" {size_of(context):,} would be sent now"
        )
        yield Cause(kind="context", text=text, since=done, turn=turn)
    if context.overflows:
        text = "the provider found the request too long: the view is made shorter first"
        yield Cause(kind="context", text=text, turn=turn)
    if summary := lane.summary:
        text = f"the model is asked for a summary, {summary.call_id}, attempt {summary.attempt}"
        if summary.failed:
            text = f"the summary {summary.call_id} failed: old results are cleared instead"
        yield Cause(kind="context", text=text, call=summary.call_id, attempt=summary.attempt)
    for asked in lane.views:
        what = f"a rewind to {asked.turn}" if asked.op == "rewind" else "a compaction"
        when = "when the turn has ended" if asked.op == "rewind" else "before the next model call"
        text = f"{what} is asked for: it is made {when if turn else 'next'}"
        yield Cause(kind="context", text=text, delivery=asked.delivery_id)


def on_which_deployment(info: LaneInfo, turn: Turn, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name the deployment that the turn began on, and what the lane is pinned to by now."""
    started = evidence.find(info.lane, r.TurnStarted, turn=turn.id)
    began_on = getattr(started.record, "deployment", "") if started else ""
    pin = evidence.pins.get(info.lane)
    if not (began_on or pin):
        return
    words = f"it began on the deployment {began_on}" if began_on else "it began on none"
    if pin is None:
        words += ", and is pinned to none"
    elif pin.deployment == ANYONE:
        words += ", and waits for what a worker of any deployment may mend"
    elif pin.stays:
        words += f", and stays with {pin.deployment}"
    elif pin.deployment != began_on:
        words += f", and goes on with {pin.deployment}{what_differs(began_on, pin, info, evidence)}"
    yield Cause(kind="deployment", text=words, turn=turn.id)


def what_differs(began_on: str, pin: Pin, info: LaneInfo, evidence: ExplainEvidence) -> str:
    """Name the parts of the agent that are others for its model or its callers by now."""
    known = {each.name: each.digests for each in evidence.deployments}
    before, after = known.get(began_on, {}), known.get(pin.deployment, {})
    parts = [key for key in {**before, **after} if key.startswith(f"{info.agent}.")]
    other = sorted(key.partition(".")[2] for key in parts if before.get(key) != after.get(key))
    return f", where these are others: {naming(other)}" if other and before and after else ""


def what_it_used(turn: Turn) -> Iterator[Cause]:
    """Say what the open turn has used so far, by itself and with the children that have ended."""
    if turn.usage == turn.below == r.NO_USAGE:
        return
    text = f"it has used {in_figures(turn.usage)}"
    if turn.below != r.NO_USAGE:
        text += f"; with children that have ended, {in_figures(turn.usage + turn.below)}"
    yield Cause(kind="usage", text=text, turn=turn.id)


def what_is_not_told(evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name each channel, webhook or hook that has not been told what happened, and why not."""
    for cursor in evidence.cursors:
        if cursor.due_at is None:
            continue
        due = date_of(cursor.due_at)
        channel = cursor.name.removeprefix(OF_CHANNEL)
        where = f"to {channel}" if channel == cursor.name else f"in the channel {channel}"
        if cursor.error:
            text = f"what happened is not told {where}: {cursor.error}"
            yield Cause(kind="outbox", text=text, until=due)
        elif evidence.now - due > SOON_TOLD:
            text = f"what happened is not told {where}: no process that could has looked at it"
            yield Cause(kind="outbox", text=text, since=due)


def how_it_ended(evidence: ExplainEvidence) -> Iterator[Cause]:
    for entry in evidence.entries:
        match entry.record:
            case r.SessionCompleted():
                yield Cause(kind="over", text="the session is completed", since=date_of(entry.at))
            case r.SessionFailed(error=error):
                text = f"the session has failed: {sentence(error)}"
                yield Cause(kind="over", text=text, since=date_of(entry.at))
            case r.SessionEnded(reason=reason):
                text = f"the session was ended{f': {reason}' if reason else ''}"
                yield Cause(kind="over", text=text, since=date_of(entry.at))


def what_has_arrived(lane: Lane) -> Iterator[Cause]:
    """Name what the owner has yet to take: cancels and answers go ahead of everything."""
    for cancel in lane.cancels:
        why = f": {cancel.reason}" if cancel.reason else ""
        what = "the session's end" if cancel.ends else "a cancel"
        yield Cause(
            kind="cancel",
            text=f"{what} was asked for and is not taken yet{why}",
            delivery=cancel.delivery_id,
        )
    for reply in lane.replies:
        text = f"an answer to {reply.request_id} has arrived and is not taken yet"
        yield Cause(kind="answer", text=text, request=reply.request_id, delivery=reply.delivery_id)


def at_rest(lane: Lane, evidence: ExplainEvidence) -> Iterator[Cause]:
    if lane.last and lane.last.how == "failed" and lane.last.failure:
        text = f"turn {lane.last.turn} failed: {sentence(lane.last.failure)}"
        yield Cause(kind="failure", text=text, turn=lane.last.turn)
    if not evidence.session.over:
        yield Cause(kind="message", text="nothing is queued: it waits for a message")


def queue(info: LaneInfo, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name what waits in the lane, and behind how much."""
    waiting = [
        delivery
        for delivery in evidence.deliveries
        if delivery.lane == info.lane
        and delivery.state == "queued"
        and delivery.kind in WAIT_THEIR_TURN
    ]
    ahead = 1 if info.turn else 0
    for number, delivery in enumerate(waiting[:MOST_QUEUED], ahead):
        what = "the message" if delivery.kind == "message" else "the retry"
        behind = f"is queued behind {number}" if number else "is next"
        yield Cause(
            kind="queue",
            text=f"{what} {delivery.delivery_id} {behind}",
            delivery=delivery.delivery_id,
        )
    if len(waiting) > MOST_QUEUED:
        yield Cause(kind="queue", text=f"{len(waiting) - MOST_QUEUED} more are queued behind it")
