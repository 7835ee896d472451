"""Values of which a test knows more than their types say; where it is wrong, it fails here."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def known(value: T | None) -> T:
    """Return a value that is there."""
    assert value is not None
    return value


def known_as(kind: type[T], value: object) -> T:
    """Return a value that is of a kind."""
    assert isinstance(value, kind), value
    return value
