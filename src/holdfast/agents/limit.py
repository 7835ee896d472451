"""Limits as an author states them: so many at once, so many in a while, across the fleet."""

from __future__ import annotations

from msgspec import Struct

from holdfast.core.limit import Bound
from holdfast.errors import InvalidDefinition


class Limit(Struct, frozen=True):
    """At most `concurrency` at once, and at most `rate` starts in `per` seconds; 0 is any number.

    Holds across all workers on one store. Whoever has no place waits in a durable queue, and
    holds nothing while it waits.
    """

    concurrency: int = 0
    rate: int = 0
    per: float = 60.0

    def __post_init__(self) -> None:
        if self.concurrency < 0 or self.rate < 0 or self.per <= 0:
            raise InvalidDefinition(
                "a limit needs concurrency and rate of 0 or more, and per over 0"
            )
        if not (self.concurrency or self.rate):
            raise InvalidDefinition("a limit that limits nothing: give concurrency, rate or both")

    def named(self, name: str) -> Bound:
        """Return the limit under the name by which all workers know it."""
        return Bound(name, self.concurrency, self.rate, int(self.per * 1000))
