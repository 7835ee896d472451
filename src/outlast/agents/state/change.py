"""Changes of slices, as records: what a call, or somebody outside, wants to become of them.

Owns the step from users' values and reducers to records. Where a record depends on what is there,
it is made of the slices as they are when it is recorded.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from outlast.agents.state.reducer import Reducer
from outlast.agents.state.slice_type import SliceType
from outlast.agents.state.stored_value import load, store
from outlast.core.record import StateChanged
from outlast.core.slice import Slices, splices, values_of
from outlast.errors import InvalidInput

T = TypeVar("T")


def seeded(kept_as: SliceType[Any], values: Sequence[Any], whose: str) -> StateChanged:
    """Return the record after which a slice has these values and no others."""
    check_state(kept_as)
    texts = tuple(store(value, kept_as, f"{whose} seeded {kept_as.name} with") for value in values)
    return StateChanged(slice=kept_as.name, op="put", values=texts, version=kept_as.version)


def appended(kept_as: SliceType[Any], value: Any, whose: str) -> StateChanged:
    """Return the record that adds a value to a slice."""
    return StateChanged(
        slice=kept_as.name,
        op="append",
        values=(store(value, kept_as, f"{whose} appended to {kept_as.name}"),),
        version=kept_as.version,
        log=kept_as.is_log,
    )


def reduced(
    kept_as: SliceType[T],
    reduce: Callable[[Sequence[T]], Sequence[T]],
    slices: Slices,
    whose: str,
) -> list[StateChanged]:
    """Return the records after which a slice has the values that a function makes of its own."""
    check_state(kept_as)
    values = [load(value, kept_as) for value in values_of(slices, kept_as.name)]
    # Before the function runs, which may change the values themselves.
    before = [store(value, kept_as, whose) for value in values]
    made = reduce(values)
    whose = f"{whose} changed {kept_as.name} to"
    if not isinstance(made, list | tuple):
        raise InvalidInput(f"{whose} {made!r:.80}: a reducer returns all values, in a list")
    after = [store(value, kept_as, whose) for value in made]
    return [
        StateChanged(
            slice=kept_as.name,
            op="splice",
            at=splice.at,
            drop=splice.drop,
            values=splice.values,
            version=kept_as.version,
        )
        for splice in splices(before, after)
    ]


def check_state(kept_as: SliceType[Any]) -> None:
    if kept_as.is_log:
        raise InvalidInput(f"{kept_as.name} is a log: it can be appended to, and nothing else")


def reducer_for(
    kept_as: SliceType[T], event: object, more: Callable[[type], Reducer[T, Any] | None]
) -> Reducer[T, Any]:
    """Return how an event changes a slice; `more` has the reducers that only a caller knows."""
    kind = type(event)
    found = more(kind) or kept_as.reducers.get(kind)
    if found is None and isinstance(event, kept_as.of):
        return kept_as.reduce
    if found is None:
        raise InvalidInput(
            f"{kept_as.name} has no reducer for {kind.__name__}: register one, by"
            f" @reducer({kept_as.of.__name__}, {kind.__name__}) where every worker imports it"
        )
    return found
