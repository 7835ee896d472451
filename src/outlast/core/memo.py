"""What is known by name, such as what a call's steps came to: it grows, and is never changed.

A call of 10,000 steps has as many states, each with one name more. So a memo is a few dicts, each
several times as large as the next: adding a name copies the small ones, and seldom a large one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from msgspec import Struct

V = TypeVar("V")

SMALL = 32
RATIO = 4


class Memo(Struct, Generic[V], frozen=True, gc=False, omit_defaults=True):
    """Values by name, in the order in which they came. Of a name that came twice, the last."""

    levels: tuple[dict[str, V], ...] = ()

    def get(self, name: str, default: V | None = None) -> V | None:
        """Return the value of a name."""
        for level in reversed(self.levels):
            if (value := level.get(name)) is not None:
                return value
        return default

    def __contains__(self, name: object) -> bool:
        return any(name in level for level in self.levels)

    def __bool__(self) -> bool:
        return bool(self.levels)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def __len__(self) -> int:
        return len(self.whole())

    def whole(self) -> dict[str, V]:
        """Return all of it as one dict."""
        found: dict[str, V] = {}
        for level in self.levels:
            found.update(level)
        return found

    def having(self, name: str, value: V) -> Memo[V]:
        """Return a memo that has one value more."""
        if not self.levels:
            return Memo(({name: value},))
        *others, last = self.levels
        if len(last) < SMALL:
            return Memo((*others, {**last, name: value}))
        # As in a log-structured merge tree: each value is copied a few times in all, not once per
        # step.
        while others and len(others[-1]) < RATIO * len(last):
            last = {**others.pop(), **last}
        return Memo((*others, last, {name: value}))


NOTHING_KNOWN: Memo[str] = Memo()


def memo_of(texts: dict[str, str]) -> Memo[str]:
    """Return a memo of texts that are known already."""
    return Memo((dict(texts),)) if texts else NOTHING_KNOWN
