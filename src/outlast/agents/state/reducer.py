"""Reducers: how an event changes the values of a slice.

A reducer is a pure function of all values and one event, and returns all values. It is run in the
worker, when a change is recorded, against the newest values, and may be run more than once.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")
E = TypeVar("E")

Reducer = Callable[[Sequence[T], E], Sequence[T]]


def append(values: Sequence[T], value: T) -> Sequence[T]:
    """Add the value after the others."""
    return [*values, value]


def replace_latest(values: Sequence[T], value: T) -> Sequence[T]:
    """Put the value in the place of the latest one, or make it the first."""
    return [*values[:-1], value]


Key = str | Callable[[Any], Any]
"""The key that tells values apart: a field's name, or a function of the value."""


def upsert_by(key: Key) -> Reducer[Any, Any]:
    """Return a reducer by which a value takes the place of the one with the same key, if any."""
    key_of = attrgetter(key) if isinstance(key, str) else key

    def upsert(values: Sequence[Any], value: Any) -> Sequence[Any]:
        wanted = key_of(value)
        place = next((n for n, each in enumerate(values) if key_of(each) == wanted), len(values))
        others = (each for each in values[place + 1 :] if key_of(each) != wanted)
        return [*values[:place], value, *others]

    return upsert


def replace_latest_by(key: Key) -> Reducer[Any, Any]:
    """Return a reducer that keeps one value per key: the newest, after all others."""
    key_of = attrgetter(key) if isinstance(key, str) else key

    def replace(values: Sequence[Any], value: Any) -> Sequence[Any]:
        wanted = key_of(value)
        return [*(each for each in values if key_of(each) != wanted), value]

    return replace
