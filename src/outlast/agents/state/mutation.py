"""Changes of a session's state by a tool: buffered, and recorded with the call's outcome.

The call sees its own changes at once. Those that depend on what is there are made once more when
the outcome is recorded, of the newest values, so that of several calls no change is lost.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from outlast.agents.state.change import appended, reduced, reducer_for, seeded
from outlast.agents.state.reducer import Reducer, append
from outlast.agents.state.slice_type import SliceType, check_reducer, types_for
from outlast.agents.state.snapshot import Snapshot, checked_snapshot
from outlast.agents.state.stored_value import Slice, load
from outlast.core.result import Change, SliceUpdate
from outlast.core.slice import (
    EMPTY,
    Slices,
    StateRecord,
    change,
    rolled_back,
    values_of,
)
from outlast.errors import InvalidInput

T = TypeVar("T")
E = TypeVar("E")


class StateBuffer:
    """The changes that a call wants to make, and the slices as the call sees them."""

    def __init__(self, slices: Slices) -> None:
        self.slices = slices
        self.changes: list[Change] = []
        self.dispatched: list[object] = []
        """The events that this code has dispatched: what triggers of milestones look at."""
        self.whose = "this code"
        self.is_open = False
        """Whether changes can be recorded: instructions have no outcome to go with."""
        self.reducers: dict[tuple[str, type], Reducer[Any, Any]] = {}

    def query(self, kept_as: SliceType[T]) -> Slice[T]:
        return Slice(values_of(self.slices, kept_as.name), kept_as)

    def add(self, record: StateRecord) -> None:
        """Buffer a change that is the same whatever is there."""
        self._check_open()
        self.slices = change(self.slices, record)
        self.changes.append(record)

    def update(self, make: Callable[[Slices], Sequence[StateRecord]]) -> None:
        """Buffer a change that is made of what is there, now and when it is recorded."""
        self._check_open()
        for record in make(self.slices):
            self.slices = change(self.slices, record)
        self.changes.append(SliceUpdate(make))

    def _check_open(self) -> None:
        if not self.is_open:
            raise InvalidInput("instructions cannot change the session's state: do it in a tool")

    def dispatch(self, kept_as: SliceType[Any], event: object) -> None:
        """Let an event change one slice."""
        self._check_open()
        self.dispatched.append(event)
        more = lambda kind: self.reducers.get((kept_as.name, kind))  # noqa: E731
        reduce = reducer_for(kept_as, event, more)
        if reduce is append:
            self.add(appended(kept_as, event, self.whose))
        else:
            apply = partial(_applied, reduce, event)
            self.update(partial(reduced_by, kept_as, apply, self.whose))

    def dispatch_to_all(self, event: object) -> bool:
        """Let an event change every slice that has a reducer for it; return whether one has."""
        found = types_for(type(event))
        for kept_as in found:
            self.dispatch(kept_as, event)
        return bool(found)


def _applied(reduce: Reducer[T, E], event: E, values: Sequence[T]) -> Sequence[T]:
    return reduce(values, event)


def reduced_by(
    kept_as: SliceType[T],
    reduce: Callable[[Sequence[T]], Sequence[T]],
    whose: str,
    slices: Slices,
) -> Sequence[StateRecord]:
    return reduced(kept_as, reduce, slices, whose)


class SliceMutation(Generic[T]):
    """Changes to one slice, recorded with the outcome of the call."""

    def __init__(self, kept_as: SliceType[T], buffer: StateBuffer) -> None:
        self._type = kept_as
        self._buffer = buffer

    def seed(self, *values: T) -> None:
        """Replace all values by these."""
        self._buffer.add(seeded(self._type, values, self._buffer.whose))

    def append(self, value: T) -> None:
        """Add a value after the others."""
        if not self._type.appends:
            raise InvalidInput(
                f"{self._type.name} has a reducer of its own, which `append` would pass by: use"
                " `dispatch`"
            )
        self._buffer.add(appended(self._type, value, self._buffer.whose))

    def clear(self, where: Callable[[T], bool] | None = None) -> None:
        """Remove all values, or those for which the predicate is true."""
        if where is None:
            return self.seed()
        predicate = where
        return self._reduce(lambda values: [each for each in values if not predicate(each)])

    def update(self, function: Callable[[T | None], T]) -> T:
        """Replace the latest value by what a function returns for it, and return that.

        The function is applied once more, to the newest value, when the outcome is recorded: if two
        calls update at the same time, no change is lost.
        """
        self._reduce(lambda values: [*values[:-1], function(values[-1] if values else None)])
        return load(values_of(self._buffer.slices, self._type.name)[-1], self._type)

    def dispatch(self, event: object) -> None:
        """Change the slice by its reducer for the event; a value of its own class by `reducer=`."""
        self._buffer.dispatch(self._type, event)

    def register(self, event: type[E], function: Reducer[T, E]) -> None:
        """Add a reducer for an event, in this call only; `reducer` is for every call."""
        check_reducer(self._type.of, event, function)
        self._buffer.reducers[self._type.name, event] = function

    def _reduce(self, reduce: Callable[[Sequence[T]], Sequence[T]]) -> None:
        self._buffer.update(partial(reduced_by, self._type, reduce, self._buffer.whose))


class SessionMutation:
    """Changes to all of the session's state, recorded with the outcome of the call."""

    def __init__(self, buffer: StateBuffer) -> None:
        self._buffer = buffer

    def dispatch(self, event: object) -> None:
        """Change every slice that has a reducer for the event."""
        if not self._buffer.dispatch_to_all(event):
            raise InvalidInput(
                f"no slice has a reducer for {type(event).__name__}: register one by @reducer(…),"
                " or declare it as a slice by @slice_type(…)"
            )

    def reset(self) -> None:
        """Remove all values except logs. The call fails if another lane then has an open turn."""
        self._buffer.update(lambda slices: [rolled_back(slices, EMPTY, reset=True)])

    def rollback(self, snapshot: Snapshot) -> None:
        """Give all slices the values that a snapshot has, except logs.

        The call fails if another lane has an open turn by then.
        """
        to = checked_snapshot(snapshot).slices
        self._buffer.update(lambda slices: [rolled_back(slices, to)])
