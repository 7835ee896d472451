"""Slice types: what a class says about how its values are kept, and what is known of each class.

Owns the one register of a process: classes, their names, and the reducers of events. A class that
says nothing is a slice with its own name, version 1, to which values are appended. Reading values
of other versions is in `stored_value.py`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, TypeVar

from msgspec import Struct

from outlast.agents.state.reducer import Reducer, append
from outlast.core.name import check_id
from outlast.core.slice import RESERVED
from outlast.errors import InvalidDefinition, InvalidInput

T = TypeVar("T")
E = TypeVar("E")

SliceKind = Literal["state", "log"]
Migration = Callable[[Any], Any]


class SliceType(Struct, Generic[T], frozen=True):
    """How the values of a class are kept. `reducers` are those of events, by the event's class."""

    of: type[T]
    name: str
    version: int = 1
    is_log: bool = False
    reduce: Reducer[T, T] = append
    migrations: Mapping[int, Migration] = {}
    reducers: dict[type, Reducer[T, Any]] = {}
    is_declared: bool = False

    @property
    def appends(self) -> bool:
        """Whether a value of the class is simply added, whatever is there already."""
        return self.reduce is append


_types: dict[type, SliceType[Any]] = {}
_named: dict[str, SliceType[Any]] = {}


def slice_type(
    name: str,
    *,
    version: int = 1,
    kind: SliceKind = "state",
    reducer: Reducer[Any, Any] = append,
    migrate: Mapping[int, Migration] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Keep the values of a class as the slice of that name.

    `reducer` says what becomes of a value that is dispatched. A slice of kind "log" is only ever
    appended to: no reset and no rollback takes anything of it back. With the `version` of the
    class's fields, `migrate` has for each version before a function from a value's plain data to
    that of the next.
    """
    check_id("name of a slice", name)
    if name.startswith(RESERVED):
        raise InvalidDefinition(f"names that begin with {RESERVED} are Outlast's own: not {name!r}")
    if kind not in ("state", "log"):
        raise InvalidDefinition(f'the slice {name} is of kind "state" or "log", not {kind!r}')
    if kind == "log" and reducer is not append:
        raise InvalidDefinition(f"the slice {name} is a log, which is only appended to")
    if type(version) is not int or version < 1:
        raise InvalidDefinition(f"the version of the slice {name} is 1 or more, not {version!r}")
    migrations = dict(migrate or {})
    if wrong := [each for each in migrations if each not in range(1, version)]:
        raise InvalidDefinition(
            f"the slice {name} migrates from versions before {version}, not from {wrong[0]!r}"
        )

    def define(of: type[T]) -> type[T]:
        if not isinstance(of, type):
            raise InvalidDefinition(f"the slice {name} is of a class, not of {of!r}")
        if (known := _named.get(name)) and not _is_again(known.of, of):
            raise InvalidDefinition(
                f"the slice {name} is of {known.of.__module__}.{known.of.__qualname__} already:"
                f" give {of.__module__}.{of.__qualname__} another name",
                slice=name,
            )
        _types[of] = _named[name] = SliceType(
            of, name, version, kind == "log", reducer, migrations, {}, is_declared=True
        )
        return of

    return define


def _is_again(known: type, of: type) -> bool:
    """Whether a class is another's definition run once more: reloaded, or within a function."""
    if "<locals>" in known.__qualname__ or "<locals>" in of.__qualname__:
        return True
    modules = {known.__module__, of.__module__}
    return known.__qualname__ == of.__qualname__ and (len(modules) == 1 or "__main__" in modules)


def reducer(of: type[T], event: type[E]) -> Callable[[Reducer[T, E]], Reducer[T, E]]:
    """Have a function say how an event changes the values of a slice, in every session.

    Each worker that imports it knows it.
    """

    def define(function: Reducer[T, E]) -> Reducer[T, E]:
        register(of, event, function)
        return function

    return define


def register(of: type[T], event: type[E], function: Reducer[T, E]) -> None:
    check_reducer(of, event, function)
    type_of(of).reducers[event] = function


def check_reducer(of: type, event: type, function: object) -> None:
    """Say what is wrong with a reducer before it is kept."""
    found: SliceType[Any] = type_of(of)
    if not isinstance(event, type):
        raise InvalidDefinition(f"a reducer of {found.name} is for a class of events: {event!r}")
    if not callable(function):
        raise InvalidDefinition(f"the reducer of {found.name} for {event.__name__} is no function")
    if found.is_log:
        raise InvalidDefinition(f"{found.name} is a log, which is only appended to: no reducers")


def type_of(of: type[T]) -> SliceType[T]:
    """Return how the values of a class are kept, whether it says so itself or not."""
    if not isinstance(of, type):
        raise InvalidInput(f"ask for a slice by its type, not by {of!r}")
    if found := _types.get(of):
        return found
    return _types.setdefault(of, SliceType(of, of.__name__, reducers={}))


def types_for(event: type) -> list[SliceType[Any]]:
    """Return all slices that an event changes: its own, if it was declared, and by reducers."""
    return [
        found
        for found in _types.values()
        if event in found.reducers or (found.of is event and found.is_declared)
    ]


def named(name: str) -> SliceType[Any] | None:
    """Return the slice that was declared with a name, if this process knows one."""
    return _named.get(name)


def types_named(name: str) -> list[SliceType[Any]]:
    """Return the slices of a name: the one that was declared, or those of classes of that name."""
    declared = _named.get(name)
    return [declared] if declared else [each for each in _types.values() if each.name == name]


def events_named(name: str) -> set[type]:
    """Return the classes of that name for which there are reducers, or that are slices."""
    events = {event for found in _types.values() for event in found.reducers}
    events |= {found.of for found in _types.values() if found.is_declared}
    return {event for event in events if event.__name__ == name}
