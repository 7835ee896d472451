"""Why a session stands where it stands: what each of its lanes waits for, link by link.

`explain` is pure: it is given all that it may look at. `gather` reads that from a store.
Nothing here decides anything; the log and `decide` do.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from holdfast.core import record as r
from holdfast.core.fold import fold_all
from holdfast.core.lane import Call, Lane, Turn
from holdfast.core.record import Entry, Failure
from holdfast.errors import UnknownSession
from holdfast.reading import entries_before
from holdfast.store import (
    DeliveryInfo,
    LaneInfo,
    PermitInfo,
    RequestInfo,
    SessionInfo,
    Store,
    WorkerInfo,
)

MOST_QUEUED = 5
"""So many waiting messages are named; the rest is counted."""


class Link(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cause, in a sentence without its instants, with the ids that it is about.

    `kind`: over, turn, owner, worker, cancel, answer, model, provider, tool, request, webhook,
    authorization, child, timer, retry, permit, queue, message or failure.
    """

    kind: str
    text: str
    since: int = 0
    until: int = 0
    turn: str = ""
    step: int = 0
    call: str = ""
    attempt: int = 0
    request: str = ""
    delivery: str = ""
    worker: str = ""
    fence: int = 0


class LaneExplanation(Struct, frozen=True, kw_only=True):
    """A lane, and why it stands where it does: what comes first leads to what comes after."""

    lane: str
    status: str
    links: tuple[Link, ...]


class Explanation(Struct, frozen=True, kw_only=True):
    """A session, lane by lane. `at` is when it was looked at."""

    session_id: str
    agent: str
    status: str
    at: int
    lanes: tuple[LaneExplanation, ...]


class Evidence(Struct, frozen=True, kw_only=True):
    """All that an explanation is made of.

    `states` are the folds of the lanes by name. `entries` are those of the log, in order, as
    far back as the open turns began, or as the session's end.
    """

    session: SessionInfo
    states: dict[str, Lane]
    entries: tuple[Entry, ...]
    deliveries: tuple[DeliveryInfo, ...] = ()
    requests: tuple[RequestInfo, ...] = ()
    workers: tuple[WorkerInfo, ...] = ()
    permits: tuple[PermitInfo, ...] = ()
    now: int


# Reading


async def gather(store: Store, session_id: str, now: int) -> Evidence:
    """Read all that an explanation of a session needs."""
    session = await store.session(session_id)
    if session is None:
        raise UnknownSession(f"there is no session {session_id}", session=session_id)
    states = {info.lane: await read_state(store, session_id, info.lane) for info in session.lanes}
    return Evidence(
        session=session,
        states=states,
        entries=await read_entries(store, session, states),
        deliveries=tuple(await store.deliveries(session_id)),
        requests=tuple(await store.requests(session_id)),
        workers=tuple(await store.workers()),
        permits=tuple(await store.permits(session_id)),
        now=now,
    )


async def read_state(store: Store, session_id: str, lane: str) -> Lane:
    loaded = await store.load(session_id, lane)
    state, start = Lane(session=session_id, name=lane), 0
    if loaded.snapshot:
        state = msgspec.msgpack.decode(loaded.snapshot.data, type=Lane)
        start = loaded.snapshot.offset
    return fold_all(state, (entry for entry in loaded.entries if entry.offset > start))


async def read_entries(
    store: Store, session: SessionInfo, states: dict[str, Lane]
) -> tuple[Entry, ...]:
    """Read back to where the open turns began, and to the session's end if it is over."""
    wanted = {state.turn.id for state in states.values() if state.turn}
    wanted |= {session.over} if session.over else set()
    found: list[Entry] = []
    if wanted:
        async for entry in entries_before(store, session.session_id, session.end + 1):
            found.append(entry)
            match entry.record:
                case r.TurnStarted(turn=turn):
                    wanted.discard(turn)
                case r.SessionCompleted() | r.SessionFailed() | r.SessionEnded():
                    wanted.discard(session.over)
            if not wanted:
                break
    return tuple(reversed(found))


# Explaining


def explain(evidence: Evidence) -> Explanation:
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
                links=tuple(explain_lane(info, evidence.states[info.lane], evidence)),
            )
            for info in session.lanes
        ),
    )


def explain_lane(info: LaneInfo, lane: Lane, evidence: Evidence) -> Iterator[Link]:
    if evidence.session.over:
        yield from how_it_ended(evidence)
        if lane.turn is None and not info.queued:
            return
    turn = lane.turn
    if turn:
        started = when(evidence, info.lane, r.TurnStarted, turn=turn.id)
        text = f"turn {turn.id} is open, in step {turn.step}"
        yield Link(kind="turn", text=text, since=started, turn=turn.id, step=turn.step)
    if turn or info.queued or info.worker:
        yield from who_carries(info, evidence)
    yield from what_has_arrived(lane, evidence)
    if turn:
        yield from within_turn(info, turn, evidence)
    elif not info.queued:
        yield from at_rest(info, lane, evidence)
    yield from queue(info, evidence)


def how_it_ended(evidence: Evidence) -> Iterator[Link]:
    for entry in evidence.entries:
        match entry.record:
            case r.SessionCompleted():
                yield Link(kind="over", text="the session is completed", since=entry.at)
            case r.SessionFailed(error=error):
                text = f"the session has failed: {sentence(error)}"
                yield Link(kind="over", text=text, since=entry.at)
            case r.SessionEnded(reason=reason):
                text = f"the session was ended{f': {reason}' if reason else ''}"
                yield Link(kind="over", text=text, since=entry.at)


# Who


def who_carries(info: LaneInfo, evidence: Evidence) -> Iterator[Link]:
    """Name the lane's owner, or say why a lane that could go on has none."""
    owner = next((w for w in evidence.workers if w.worker == info.worker), None)
    if owner:
        drains = ", and drains" if owner.draining else ""
        yield Link(
            kind="owner",
            text=f"worker {owner.worker} on {owner.host} (pid {owner.pid}) carries it{drains}",
            until=owner.lease_until,
            worker=owner.worker,
            fence=info.fence,
        )
        return
    if info.worker:
        text = f"its owner {info.worker} is gone; another worker will take it over"
        yield Link(kind="owner", text=text, worker=info.worker, fence=info.fence)
    if info.ready_at is not None and info.ready_at <= evidence.now:
        yield Link(
            kind="worker",
            text=f"it waits for a worker: {which(info, evidence)}",
            since=info.ready_at,
        )


def which(info: LaneInfo, evidence: Evidence) -> str:
    """Say which worker could take up a lane that is ready."""
    if not evidence.workers:
        return "none is running on this store"
    fit = [worker for worker in evidence.workers if serves(worker, info)]
    if not fit:
        return f"none of the {len(evidence.workers)} there are serves it"
    staying = [worker for worker in fit if not worker.draining]
    if not staying:
        return "all that serve it are draining"
    if all(0 < worker.concurrency <= worker.held for worker in staying):
        return f"all {len(staying)} that serve it are full"
    return f"{staying[0].worker} or another will take it up at once"


def serves(worker: WorkerInfo, info: LaneInfo) -> bool:
    fits = not worker.lanes or any(fnmatchcase(info.lane, pattern) for pattern in worker.lanes)
    return fits and info.agent in worker.agents


# What


def what_has_arrived(lane: Lane, evidence: Evidence) -> Iterator[Link]:
    """Name what the owner has yet to take: cancels and answers go ahead of everything."""
    for cancel in lane.cancels:
        why = f": {cancel.reason}" if cancel.reason else ""
        what = "the session's end" if cancel.ends else "a cancel"
        yield Link(
            kind="cancel",
            text=f"{what} was asked for and is not taken yet{why}",
            delivery=cancel.delivery_id,
        )
    for reply in lane.replies:
        text = f"an answer to {reply.request_id} has arrived and is not taken yet"
        yield Link(kind="answer", text=text, request=reply.request_id, delivery=reply.delivery_id)


def within_turn(info: LaneInfo, turn: Turn, evidence: Evidence) -> Iterator[Link]:
    if turn.failure:
        yield Link(kind="failure", text=f"the turn fails: {sentence(turn.failure)}", turn=turn.id)
    elif not turn.answer:
        yield from the_model(info, turn, evidence)
    answered = {reply.request_id for reply in evidence.states[info.lane].replies}
    for request_id in turn.requests:
        if request_id not in answered:
            yield the_request(info, turn, request_id, evidence)
    for call in turn.calls.values():
        yield from the_call(info, turn, call, evidence)


def the_model(info: LaneInfo, turn: Turn, evidence: Evidence) -> Iterator[Link]:
    model = turn.model
    if model is None:
        return
    if model.status == "retry" and model.not_before > evidence.now:
        retrying = find(evidence, info.lane, r.ModelRetrying, call_id=model.call_id)
        why = f": {sentence(retrying.record.error)}" if retrying else ""  # type: ignore[union-attr]
        yield Link(
            kind="provider",
            text=f"the model failed in attempt {model.attempt}, and is asked again{why}",
            since=retrying.at if retrying else 0,
            until=model.not_before,
            turn=turn.id,
            step=turn.step,
            call=model.call_id,
            attempt=model.attempt,
        )
        return
    is_running = model.status == "running"
    started = {"call_id": model.call_id, "attempt": model.attempt}
    yield Link(
        kind="model",
        text=f"the model call {model.call_id} is "
        + (f"under way in attempt {model.attempt}" if is_running else "to be made again"),
        since=when(evidence, info.lane, r.ModelStarted, **started) if is_running else 0,
        turn=turn.id,
        step=turn.step,
        call=model.call_id,
        attempt=model.attempt,
    )


def the_request(info: LaneInfo, turn: Turn, request_id: str, evidence: Evidence) -> Link:
    request = turn.requests[request_id]
    if request.kind == "webhook":
        return Link(
            kind="webhook",
            text=f"it waits for a call from outside to its {request.name}",
            since=when(evidence, info.lane, r.WebhookOpened, request_id=request_id),
            until=request.expires_at,
            turn=turn.id,
            step=turn.step,
            call=request.call_id,
            request=request_id,
        )
    if request.kind == "authorization":
        return Link(
            kind="authorization",
            text=f"it waits for somebody to sign in to {request.connection}",
            since=when(evidence, info.lane, r.AuthorizationRequired, request_id=request_id),
            until=request.expires_at,
            turn=turn.id,
            step=turn.step,
            call=request.call_id,
            request=request_id,
        )
    if request.kind == "child":
        return Link(
            kind="child",
            text=f"it waits for its child {request.child}",
            since=when(evidence, info.lane, r.SubagentCalled, request_id=request_id),
            turn=turn.id,
            step=turn.step,
            call=request.call_id,
            request=request_id,
        )
    listed = next((q for q in evidence.requests if q.request_id == request_id), None)
    asked = msgspec.json.decode(listed.data, type=r.InputRequested) if listed else None
    prompt = f": {asked.prompt}" if asked else ""
    call = f" {asked.tool}({asked.args})" if asked and asked.tool and asked.args else ""
    return Link(
        kind="request",
        text=f"it waits for the {request.kind} {request_id}{prompt}{call}",
        since=when(evidence, info.lane, r.InputRequested, request_id=request_id),
        until=request.expires_at,
        turn=turn.id,
        step=turn.step,
        call=request.call_id,
        request=request_id,
    )


def the_call(info: LaneInfo, turn: Turn, call: Call, evidence: Evidence) -> Iterator[Link]:
    def link(kind: str, text: str, since: int = 0, until: int = 0) -> Link:
        return Link(
            kind=kind,
            text=f"the tool {call.tool} {text}",
            since=since,
            until=until,
            turn=turn.id,
            step=turn.step,
            call=call.call_id,
            attempt=call.attempt,
        )

    match call.status:
        case "running":
            started = {"call_id": call.call_id, "attempt": call.attempt}
            since = when(evidence, info.lane, r.ToolStarted, **started)
            yield link("tool", f"runs in attempt {call.attempt}", since)
        case "waiting" if call.due_at:
            since = when(evidence, info.lane, r.TimerSet, call_id=call.call_id)
            yield link("timer", "sleeps", since, call.due_at)
        case "again":
            failed = find(evidence, info.lane, r.ToolFailed, call_id=call.call_id)
            why = f": {sentence(failed.record.error)}" if failed else ""  # type: ignore[union-attr]
            text = f"failed in attempt {call.attempt}, and is tried again{why}"
            yield link("retry", text, failed.at if failed else 0, call.due_at)
        case "cut":
            yield link("tool", f"was interrupted in attempt {call.attempt}")
    for permit in evidence.permits:
        if permit.call_id == call.call_id and permit.lane == info.lane and not permit.held:
            behind = f", behind {permit.ahead}" if permit.ahead else ""
            yield link("permit", f"waits for a place under the limit {permit.name}{behind}")


# At rest


def at_rest(info: LaneInfo, lane: Lane, evidence: Evidence) -> Iterator[Link]:
    if lane.last and lane.last.how == "failed" and lane.last.failure:
        text = f"turn {lane.last.turn} failed: {sentence(lane.last.failure)}"
        yield Link(kind="failure", text=text, turn=lane.last.turn)
    if not evidence.session.over:
        yield Link(kind="message", text="nothing is queued: it waits for a message")


def queue(info: LaneInfo, evidence: Evidence) -> Iterator[Link]:
    """Name what waits in the lane, and behind how much."""
    waiting = [
        delivery
        for delivery in evidence.deliveries
        if delivery.lane == info.lane
        and delivery.state == "queued"
        and delivery.kind in ("message", "retry")
    ]
    ahead = 1 if info.turn else 0
    for number, delivery in enumerate(waiting[:MOST_QUEUED], ahead):
        what = "the message" if delivery.kind == "message" else "the retry"
        behind = f"is queued behind {number}" if number else "is next"
        yield Link(
            kind="queue",
            text=f"{what} {delivery.delivery_id} {behind}",
            delivery=delivery.delivery_id,
        )
    if len(waiting) > MOST_QUEUED:
        yield Link(kind="queue", text=f"{len(waiting) - MOST_QUEUED} more are queued behind it")


# The log


def find(evidence: Evidence, lane: str, kind: type, **facts: object) -> Entry | None:
    """Return the last entry of a lane with a record of this kind and with these facts."""
    ours = (e for e in reversed(evidence.entries) if e.lane == lane and isinstance(e.record, kind))
    wanted = facts.items()
    return next((e for e in ours if all(getattr(e.record, k) == v for k, v in wanted)), None)


def when(evidence: Evidence, lane: str, kind: type, **facts: object) -> int:
    entry = find(evidence, lane, kind, **facts)
    return entry.at if entry else 0


def sentence(error: Failure) -> str:
    return f"{error.code}: {error.message}"
