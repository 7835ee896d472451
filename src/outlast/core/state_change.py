"""Changes of state that come from outside: when one is taken, and how it is written down.

They arrive for `main`, and its owner takes them between the steps of a turn, or while nothing of
the lane runs. Refuses to know reducers: what needs them is in `agents/state/change_request.py`.
"""

from collections.abc import Sequence

from outlast.core import record as r
from outlast.core.action import AnyAction, CallModel, ChangeState, Park
from outlast.core.lane import Lane
from outlast.core.message import MAX_MESSAGE
from outlast.core.slice import (
    EMPTY,
    KeptSlice,
    Slices,
    StateRecord,
    is_log,
    rolled_back,
)
from outlast.errors import InvalidInput

TURNS_OPEN = r.Failure(
    "TURNS_OPEN",
    "another lane of the session has an open turn, and a rollback changes the state of all lanes:"
    " ask again when that turn has ended, or cancel it",
)
TOKEN_OF_ANOTHER = r.Failure(
    "TOKEN_TAKEN",
    "another session has this continuation token, or this one is over: choose another",
)
REFUSED_CHANGES = {"turns_open": TURNS_OPEN, "token_taken": TOKEN_OF_ANOTHER}
"""What is said of a change that the store refused, by its reason."""


def check_size(change: r.StateChangeRequested) -> None:
    """Refuse a change that is larger than a message may be."""
    slices = (value for values in change.slices.values() for value in values)
    size = sum(len(value.text.encode()) for value in (*change.values, *slices))
    if size > MAX_MESSAGE:
        raise InvalidInput(
            f"a change of state has {size:,} bytes, and {MAX_MESSAGE:,} is the most: keep large"
            " values elsewhere, and where they are in the state"
        )


def put_change_first(lane: Lane, action: AnyAction) -> AnyAction:
    """Return the first of a lane's changes of state, if the action leaves room for it."""
    return ChangeState(change=lane.changes[0]) if ends_step(action) else action


def ends_step(action: AnyAction) -> bool:
    """Say whether an action comes between two steps, or rests within one: nothing runs then."""
    begins = isinstance(action, CallModel) and action.attempt == 1 and not action.running
    return begins or isinstance(action, Park)


def made_of(change: r.StateChangeRequested, slices: Slices) -> list[StateRecord]:
    """Return the records of a change that needs no reducer, made of the slices as they are."""
    match change.op:
        case "rollback":
            return [rolled_back(slices, slices_of(change))]
        case "reset":
            return [rolled_back(slices, EMPTY, reset=True)]
        case "append":
            return [_written(change, "append", log=change.log or is_log(slices, change.slice))]
    if is_log(slices, change.slice):
        raise InvalidInput(f"{change.slice} is a log: it can be appended to, and nothing else")
    return [_written(change, "put")]


def _written(change: r.StateChangeRequested, op: str, *, log: bool = False) -> r.StateChanged:
    """Return the values of a change as a record; they were all asked for in one version."""
    return r.StateChanged(
        slice=change.slice,
        op=op,
        values=tuple(value.text for value in change.values),
        version=change.values[0].version if change.values else 1,
        log=log,
    )


def slices_of(change: r.StateChangeRequested) -> Slices:
    """Return the slices that a rollback goes back to."""
    kept = change.slices.items()
    return {name: KeptSlice(values, name in change.logs) for name, values in kept}


def rekeyed(change: r.StateChangeRequested) -> r.SessionRekeyed:
    """Return the record of another address that was asked for from outside."""
    return r.SessionRekeyed(token=change.token, revoked=change.revoked, outbox=change.outbox)


def change_made(
    change: r.StateChangeRequested, records: Sequence[r.AnyRecord]
) -> list[r.AnyRecord]:
    """Return a change with the end of its delivery: one commit, or it is taken again."""
    return [*records, r.DeliverySettled(delivery_id=change.delivery_id, outcome="completed")]


def change_refused(change: r.StateChangeRequested, error: r.Failure) -> list[r.AnyRecord]:
    """Say why a change cannot be made."""
    return [
        r.StateChangeRefused(delivery_id=change.delivery_id, error=error),
        r.DeliverySettled(delivery_id=change.delivery_id, outcome="refused"),
    ]
