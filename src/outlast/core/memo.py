"""What the steps and waits of a call came to, by name: a mapping that grows, and is never changed.

A call of 10,000 steps has as many states, each with one name more. So a memo is a few dicts, each
several times as large as the next: adding a name copies the small ones, and seldom a large one.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

SMALL = 32
RATIO = 4


class Memo(Struct, frozen=True, gc=False, omit_defaults=True):
    """JSON texts by name, in the order in which they came. Of a name that came twice, the last."""

    levels: tuple[dict[str, str], ...] = ()

    def get(self, name: str, default: str | None = None) -> str | None:
        """Return the text of a name."""
        for level in reversed(self.levels):
            if (text := level.get(name)) is not None:
                return text
        return default

    def __contains__(self, name: object) -> bool:
        return any(name in level for level in self.levels)

    def __bool__(self) -> bool:
        return bool(self.levels)

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def __len__(self) -> int:
        return len(self.whole())

    def whole(self) -> dict[str, str]:
        """Return all of it as one dict."""
        found: dict[str, str] = {}
        for level in self.levels:
            found.update(level)
        return found

    def with_text(self, name: str, text: str) -> Memo:
        """Return a memo that has one text more."""
        if not self.levels:
            return Memo(({name: text},))
        *others, last = self.levels
        if len(last) < SMALL:
            return Memo((*others, {**last, name: text}))
        # As in a log-structured merge tree: each text is copied a few times in all, not once per
        # step.
        while others and len(others[-1]) < RATIO * len(last):
            last = {**others.pop(), **last}
        return Memo((*others, last, {name: text}))


NOTHING_KNOWN = Memo()


def memo_of(texts: dict[str, str]) -> Memo:
    """Return a memo of texts that are known already."""
    return Memo((dict(texts),)) if texts else NOTHING_KNOWN
