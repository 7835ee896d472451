"""Derives from a commit's records the indexes that stores keep beside the log.

Owns the derivation of every index, used while committing and by `outlast verify`, which builds
the indexes anew from the log and compares. Refuses to know how a store keeps them.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec
from msgspec import Struct

from outlast.core import record as r
from outlast.core.lane import Lane, Status
from outlast.core.slice import STATE_RECORDS


class DeliveryChange(Struct, frozen=True, gc=False):
    """A delivery's new state: running, joined or settled; `code` says why its turn failed."""

    delivery_id: str
    state: str
    outcome: str = ""
    turn: str = ""
    code: str = ""


class OpenedRequest(Struct, frozen=True, gc=False):
    """A request as it is listed and answered; `data` is what was asked, as JSON text."""

    request_id: str
    kind: str
    expires_at: int
    data: str


class ClosedRequest(Struct, frozen=True, gc=False):
    """`how`: answered, cancelled, superseded or expired."""

    request_id: str
    how: str


class LaneFailure(Struct, frozen=True, gc=False):
    """Why a lane's last turn failed, as it is listed: `message` is the beginning of the sentence.

    `turn` can be retried; it is empty where the session itself has failed.
    """

    code: str
    message: str
    turn: str = ""


class Index(Struct, frozen=True, gc=False):
    """All that a store must change besides adding to the log.

    What `rolls_back` slices is refused while another lane of the session has an open turn.
    `failure` is what the lane shows from now on; with `clears_failure` it shows none, as its next
    turn has begun or its session is over in another way.
    """

    deliveries: tuple[DeliveryChange, ...] = ()
    opened: tuple[OpenedRequest, ...] = ()
    closed: tuple[ClosedRequest, ...] = ()
    tokens: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    outbox: tuple[r.NewOutboxCursor, ...] = ()
    over: str = ""
    changes_slices: bool = False
    rolls_back: bool = False
    failure: LaneFailure | None = None
    clears_failure: bool = False


NO_CHANGES = Index()

GIVEN_UP = "GIVEN_UP"
"""The code of a child's failure where it was its parent that did not wait any longer."""
PEOPLE = ("approval", "question", "interrupted", "budget")
"""The kinds of requests that a human answers."""
RELAYED = "relayed"
"""The kind of those that a child of this app has asked: they are listed once, where they come
from."""

_OVER: dict[type, str] = {
    r.SessionCompleted: "completed",
    r.SessionFailed: "failed",
    r.SessionEnded: "ended",
}


def index(records: Collection[r.AnyRecord]) -> Index:
    """Return what the owner's records change in the indexes."""
    found = NO_CHANGES
    # Most commits have nothing that is indexed, and pay for no more than this look at the set.
    if not _INDEXED.isdisjoint(map(type, records)):
        for record in records:
            if (kind := type(record)) in _INDEXED:
                found = _add(found, record, kind)
    return found


def _add(found: Index, e: r.AnyRecord, kind: type) -> Index:
    replace = msgspec.structs.replace
    match e:
        case r.TurnStarted():
            change = DeliveryChange(e.delivery_id, "running", turn=e.turn)
            deliveries = (*found.deliveries, change)
            return replace(found, deliveries=deliveries, failure=None, clears_failure=True)
        case r.TurnFailed():
            return replace(found, failure=shown_failure(e.error, e.turn), clears_failure=False)
        case r.SessionFailed():
            failure = shown_failure(e.error)
            return replace(found, over=_OVER[kind], failure=failure, clears_failure=False)
        case r.DeliveryJoined():
            change = DeliveryChange(e.delivery_id, "joined", turn=e.turn)
            return replace(found, deliveries=(*found.deliveries, change))
        case r.DeliverySettled():
            # Settled in the commit of its turn's end, where the failure is known; the row then need
            # not be looked up.
            shown = found.failure
            code = shown.code if shown and e.turn and shown.turn == e.turn else ""
            change = DeliveryChange(e.delivery_id, "settled", e.outcome, e.turn, code)
            return replace(found, deliveries=(*found.deliveries, change))
        case r.RequestOpened():
            return replace(found, opened=(*found.opened, opened(e)))
        case r.RequestResolved():
            closed = ClosedRequest(e.request_id, e.how)
            return replace(found, closed=(*found.closed, closed))
        case r.RequestExpired():
            closed = ClosedRequest(e.request_id, "expired")
            return replace(found, closed=(*found.closed, closed))
        case r.CallbackOpened() | r.AuthorizationRequired() | r.SubagentCalled():
            return replace(found, opened=(*found.opened, opened(e)))
        case r.SubagentCompleted() | r.SubagentFailed():
            closed = ClosedRequest(e.request_id, "answered" if is_answer(e) else "cancelled")
            return replace(found, closed=(*found.closed, closed))
        case r.CallbackClosed():
            closed = ClosedRequest(e.request_id, e.how)
            return replace(found, closed=(*found.closed, closed))
        case r.AuthorizationCompleted() | r.AuthorizationFailed():
            closed = ClosedRequest(e.request_id, how_closed(e))
            return replace(found, closed=(*found.closed, closed))
        case r.SessionRekeyed():
            return replace(
                found,
                tokens=(*found.tokens, e.token) if e.token else found.tokens,
                revoked=(*found.revoked, *e.revoked),
                outbox=(*found.outbox, *e.outbox),
            )
        case r.StateChanged():
            return replace(found, changes_slices=True)
        case r.StateRolledBack():
            return replace(found, changes_slices=True, rolls_back=True)
    return replace(found, over=_OVER[kind], failure=None, clears_failure=True)


SHOWN_CODE, SHOWN_MESSAGE = 100, 500
"""How many characters of a failure are listed; the whole of it is in the log."""


def shown_failure(error: r.Failure, turn: str = "") -> LaneFailure:
    """Return a failure as it is listed: with a code, and without NUL, which no database takes."""
    # Only the beginning: a list of a thousand failures must stay small.
    code, message = error.code[:SHOWN_CODE], error.message[:SHOWN_MESSAGE]
    return LaneFailure(code.replace("\0", "") or "UNKNOWN", message.replace("\0", ""), turn)


_INDEXED = frozenset(
    {
        r.TurnStarted,
        r.TurnFailed,
        r.DeliveryJoined,
        r.DeliverySettled,
        r.RequestOpened,
        r.RequestResolved,
        r.RequestExpired,
        r.CallbackOpened,
        r.CallbackClosed,
        r.AuthorizationRequired,
        r.AuthorizationCompleted,
        r.AuthorizationFailed,
        r.SubagentCalled,
        r.SubagentCompleted,
        r.SubagentFailed,
        r.SessionRekeyed,
        r.StateChanged,
        r.StateRolledBack,
        *_OVER,
    }
)


_NO_PROGRESS = frozenset(
    {
        r.LaneTakenOver,
        r.LaneBlocked,
        r.SessionResumed,
        r.TurnStarted,
        r.TurnStopping,
        r.StepStarted,
        r.StepFailed,
        r.DeliveryJoined,
        r.DeliverySettled,
        r.ModelStarted,
        r.MessageDelta,
        r.ReasoningDelta,
        r.MessageAborted,
        r.UsageRecorded,
        r.BudgetCharged,
        r.BudgetWarned,
        r.BudgetExhausted,
        r.PromptRendered,
        r.ContextRestarted,
        r.ContextOverflowed,
        r.SummaryStarted,
        r.FeedbackSkipped,
        r.ToolStarted,
        r.ToolVanished,
        r.ToolStepStarted,
        r.ToolProgress,
        r.ToolEmitted,
        r.WorkflowCalled,
        r.ToolMismatched,
        r.EventReceived,
        r.EventTaken,
        r.UndoRegistered,
        r.UndoStarted,
    }
)
"""Records that say only that something begins, goes on or comes to nothing."""


def makes_progress(records: Iterable[r.AnyRecord]) -> bool:
    """Say whether something has come to its end: a lane's owner that gets so far is not lost.

    The end of a failed turn is no progress: its records end because it failed.
    """
    kinds = {type(record) for record in records}
    return r.TurnFailed not in kinds and not kinds <= _NO_PROGRESS


def end_offset(records: Sequence[r.AnyRecord], first: int) -> int:
    """Return where in the log the record stands that ends the session."""
    return next(first + place for place, record in enumerate(records) if type(record) in _OVER)


def change_offset(records: Sequence[r.AnyRecord], first: int) -> int:
    """Return where in the log the last record stands that changes slices."""
    places = (place for place, record in enumerate(records) if isinstance(record, STATE_RECORDS))
    return first + max(places)


def is_answer(e: r.SubagentCompleted | r.SubagentFailed) -> bool:
    """Whether a child has ended by itself; else its parent gave it up."""
    return isinstance(e, r.SubagentCompleted) or e.error.code != GIVEN_UP


def how_closed(e: r.AuthorizationCompleted | r.AuthorizationFailed) -> str:
    """Return how a sign-in's request was closed: a denial is an answer too."""
    if isinstance(e, r.AuthorizationCompleted) or e.how in ("denied", "failed"):
        return "answered"
    return e.how


Opening = r.RequestOpened | r.CallbackOpened | r.AuthorizationRequired | r.SubagentCalled
"""The records that open a request."""


def opened(e: Opening) -> OpenedRequest:
    data = msgspec.json.encode(e).decode()
    match e:
        case r.RequestOpened():
            kind = RELAYED if e.origin and not e.subagent else e.kind
            # Expiry is the parent's word: the child's row must not run out by itself.
            return OpenedRequest(e.request_id, kind, 0 if e.expires_above else e.expires_at, data)
        case r.CallbackOpened():
            return OpenedRequest(e.request_id, "callback", e.expires_at, data)
        case r.AuthorizationRequired():
            return OpenedRequest(e.request_id, "authorization", e.expires_at, data)
    return OpenedRequest(e.request_id, "child", 0, data)


def status_of(lane: Lane) -> Status:
    """Name a lane's state for listings: queued, running, idle, how it ended, or how it waits.

    A lane that is `waiting` needs a delivery; one that is `sleeping` goes on by itself. One that is
    `failed` and not over rests after a failed turn, which can be retried.
    """
    if lane.over:
        return lane.over
    if lane.turn and lane.waiting:
        needs_somebody = "request" in lane.waiting or "authorization" in lane.waiting
        return "waiting" if needs_somebody else "sleeping"
    if lane.turn:
        return "running"
    if lane.queue:
        return "queued"
    return "failed" if lane.last and lane.last.how == "failed" else "idle"
