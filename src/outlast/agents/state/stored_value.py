"""Values of slices as they are stored, and as values of a class of today.

Owns the migration of values that were written in an older version of their class. A value that
does not fit is never dropped and is no damage of the store: it is told with what differs.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from outlast.agents.runtime.json_value import TypeMismatch, fitted, to_json
from outlast.agents.state.slice_type import SliceType
from outlast.core.record import SliceValue
from outlast.errors import InvalidInput, SliceChanged

T = TypeVar("T")


class Slice(Generic[T]):
    """The values of one type in the session's state, oldest first."""

    def __init__(self, values: Sequence[SliceValue], kept_as: SliceType[T]) -> None:
        self._values = values
        self._type = kept_as

    def all(self) -> list[T]:
        return [load(value, self._type) for value in self._values]

    def latest(self) -> T | None:
        return load(self._values[-1], self._type) if self._values else None

    def where(self, predicate: Callable[[T], bool]) -> list[T]:
        """Return the values for which the predicate is true."""
        return [value for value in self.all() if predicate(value)]


def load(value: SliceValue, kept_as: SliceType[T]) -> T:
    """Return a stored value as one of its class. Raises SliceChanged if it cannot be."""
    # Only for reading: what is stored is never rewritten.
    text = value.text if value.version == kept_as.version else migrated(value, kept_as)
    try:
        return fitted(text, kept_as.of)  # type: ignore[no-any-return]
    except TypeMismatch as why:
        raise changed(
            value,
            kept_as,
            f"a value does not fit {kept_as.of.__name__}: {why}",
            "give new fields defaults, or raise the version of the slice and migrate from this one",
        ) from why


def migrated(value: SliceValue, kept_as: SliceType[Any]) -> str:
    """Return a value's text in the version of today, step by step."""
    if value.version > kept_as.version:
        raise changed(
            value,
            kept_as,
            f"a value was written in version {value.version}, by newer code",
            "run that code, or have this one read that version",
        )
    plain = msgspec.json.decode(value.text)
    for version in range(value.version, kept_as.version):
        migrate = kept_as.migrations.get(version)
        if migrate is None:
            raise changed(
                value,
                kept_as,
                f"a value was written in version {value.version}",
                f"say how one of version {version} becomes one of the next:"
                f" migrate={{{version}: …}}",
            )
        try:
            plain = migrate(plain)
        except Exception as error:
            raise changed(
                value,
                kept_as,
                f"the migration from version {version} raised {type(error).__name__}: {error}",
                "mend that function",
            ) from error
    return to_json(plain, f"the migration of {kept_as.name} made")


def changed(value: SliceValue, kept_as: SliceType[Any], what: str, instead: str) -> SliceChanged:
    return SliceChanged(
        f"the slice {kept_as.name} is of version {kept_as.version} in this code, and {what};"
        f" nothing of it is lost: {instead}",
        slice=kept_as.name,
        version=kept_as.version,
        stored=value.version,
    )


def store(value: Any, kept_as: SliceType[Any], whose: str) -> str:
    """Return a value as it is stored, if it is one of the slice's class."""
    if not isinstance(value, kept_as.of):
        raise InvalidInput(f"{whose} {value!r:.80}, which is no {kept_as.of.__name__}")
    return to_json(value, whose)
