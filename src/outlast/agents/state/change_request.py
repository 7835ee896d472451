"""Changes of state that are asked for from outside: how one is worded, and how it is made.

The wording is in the process that asks, the making in the worker that owns the lane `main`. What
goes between them is data: an event is known by the name of its class, and a reducer is code that
the worker has to know itself. No name in stored data is ever imported.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from outlast.agents.runtime.json_value import TypeMismatch, fitted, to_json
from outlast.agents.state.change import appended, check_state, reduced, reducer_for
from outlast.agents.state.reducer import append
from outlast.agents.state.slice_type import (
    SliceType,
    events_named,
    type_of,
    types_for,
    types_named,
)
from outlast.agents.state.snapshot import Snapshot, checked_snapshot
from outlast.agents.state.stored_value import load, store
from outlast.core.record import SliceValue, StateChangeRequested
from outlast.core.slice import Slices, StateRecord, change
from outlast.core.state_change import made_of
from outlast.errors import InvalidInput, SliceChanged

OUTSIDE = "this code"


# Asking


def seed_request(kept_as: SliceType[Any], values: Sequence[Any]) -> StateChangeRequested:
    """Return the request that a slice has these values and no others."""
    check_state(kept_as)
    texts = (store(value, kept_as, f"{OUTSIDE} seeded {kept_as.name} with") for value in values)
    kept = tuple(SliceValue(text, kept_as.version) for text in texts)
    return StateChangeRequested(delivery_id="", op="seed", slice=kept_as.name, values=kept)


def append_request(kept_as: SliceType[Any], value: Any) -> StateChangeRequested:
    """Return the request that a slice gets one value more."""
    check_appends(kept_as)
    text = store(value, kept_as, f"{OUTSIDE} appended to {kept_as.name}")
    return StateChangeRequested(
        delivery_id="",
        op="append",
        slice=kept_as.name,
        values=(SliceValue(text, kept_as.version),),
        log=kept_as.is_log,
    )


def check_appends(kept_as: SliceType[Any]) -> None:
    """Refuse to append past the reducer of a slice."""
    if not kept_as.appends:
        raise InvalidInput(
            f"{kept_as.name} has a reducer of its own, which `append` would pass by: use `dispatch`"
        )


def dispatch_request(event: object, kept_as: SliceType[Any] | None = None) -> StateChangeRequested:
    """Return the request that an event changes a slice, or all that have a reducer for it.

    Whether there is a reducer is the worker's to know: this process may have other code.
    """
    kind = type(event)
    text = to_json(event, f"{OUTSIDE} dispatched")
    return StateChangeRequested(
        delivery_id="",
        op="dispatch",
        slice=kept_as.name if kept_as else "",
        event=kind.__name__,
        values=(SliceValue(text, type_of(kind).version),),
    )


def rollback_request(snapshot: Snapshot) -> StateChangeRequested:
    """Return the request that all slices are as they were in a snapshot."""
    slices = checked_snapshot(snapshot).slices
    return StateChangeRequested(
        delivery_id="",
        op="rollback",
        slices={name: kept.values for name, kept in slices.items()},
        logs=tuple(name for name, kept in slices.items() if kept.log),
    )


RESET = StateChangeRequested(delivery_id="", op="reset")


# Asking in JSON


def values_for(name: str, values: Sequence[SliceValue]) -> tuple[type[Any], list[Any]]:
    """Return the class of a slice, and values that came as JSON as values of it."""
    found = types_named(name)
    if len(found) != 1:
        what = f"there are {len(found)} slices {name}" if found else f"there is no slice {name}"
        raise InvalidInput(
            f"{what} in this process: declare it by @slice_type where the app is defined"
        )
    try:
        return found[0].of, [load(value, found[0]) for value in values]
    except SliceChanged as why:
        raise InvalidInput(why.message) from why


def event_for(name: str, kind: str, value: SliceValue) -> object:
    """Return an event that came as JSON, for a slice or for all that take one of its class."""
    try:
        return event_of(
            StateChangeRequested(
                delivery_id="", op="dispatch", slice=name, event=kind, values=(value,)
            )
        )
    except SliceChanged as why:
        raise InvalidInput(why.message) from why


# Making


def make(wanted: StateChangeRequested, slices: Slices) -> list[StateRecord]:
    """Return the records of a change, made of the slices as they are.

    Raises InvalidInput or SliceChanged where it cannot be made, and what a reducer raises.
    """
    return dispatched(wanted, slices) if wanted.op == "dispatch" else made_of(wanted, slices)


def dispatched(wanted: StateChangeRequested, slices: Slices) -> list[StateRecord]:
    event = event_of(wanted)
    records: list[StateRecord] = []
    for kept_as in types_for(type(event)):
        if wanted.slice in ("", kept_as.name):
            made = reduced_by_event(kept_as, event, slices)
            for record in made:
                # Each reducer sees what the one before it has made, as one after the other in the
                # log.
                slices = change(slices, record)
            records += made
    return records


def reduced_by_event(
    kept_as: SliceType[Any], event: object, slices: Slices
) -> Sequence[StateRecord]:
    reduce = reducer_for(kept_as, event, lambda _: None)
    if reduce is append:
        return [appended(kept_as, event, "an event")]
    return reduced(kept_as, partial(_applied, reduce, event), slices, "an event")


def _applied(reduce: Any, event: object, values: Sequence[Any]) -> Any:
    return reduce(values, event)


def event_of(wanted: StateChangeRequested) -> object:
    """Return the event that was dispatched, as one of the class that this process knows."""
    [stored] = wanted.values
    kind = event_class(wanted)
    if any(known.of is kind for known in types_for(kind)):  # a value of a slice, maybe an older one
        return load(stored, type_of(kind))
    try:
        return fitted(stored.text, kind)
    except TypeMismatch as why:
        raise InvalidInput(f"this is no {wanted.event}: {why}") from why


def event_class(wanted: StateChangeRequested) -> type:
    """Return the one class of an event's name that changes the slice, or any slice."""
    if wanted.slice and not types_named(wanted.slice):
        raise InvalidInput(
            f"the worker knows no slice {wanted.slice}: import the module that declares it where"
            " the worker imports its agents"
        )
    found = [
        event
        for event in events_named(wanted.event)
        if not wanted.slice or any(each.name == wanted.slice for each in types_for(event))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        where = ", ".join(sorted(f"{each.__module__}.{each.__qualname__}" for each in found))
        raise InvalidInput(
            f"{wanted.event} could be any of {where}: name the slice that it is for, or rename one"
        )
    who = f"{wanted.slice} has no reducer" if wanted.slice else "no slice has a reducer"
    raise InvalidInput(
        f"{who} for {wanted.event}: register one by @reducer(…) where every worker imports it"
    )
