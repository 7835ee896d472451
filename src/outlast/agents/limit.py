"""Limits as an author states them: so many at once, so many in a while, across the fleet."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from outlast.core.instant import Span, milliseconds
from outlast.core.limit import Bound
from outlast.core.setting import count_of, seconds_of
from outlast.errors import InvalidDefinition


class Limit(Struct, frozen=True):
    """At most `concurrency` at once, and at most `rate` starts in `per`; 0 is any number.

    It holds across all workers on one store. A call without a permit waits in a durable queue; a
    session whose calls all wait is parked.
    """

    concurrency: int = 0
    rate: int = 0
    per: Span = 60.0

    def __post_init__(self) -> None:
        count_of("the concurrency of a limit", self.concurrency, least=0)
        count_of("the rate of a limit", self.rate, least=0)
        seconds_of("per of a limit", self.per)
        if not (self.concurrency or self.rate):
            raise InvalidDefinition("this Limit limits nothing: give it concurrency, rate or both")

    def named(self, name: str) -> list[Bound]:
        """Return what it bounds, under the names by which all workers know it."""
        found = [Bound(name, concurrency=self.concurrency)] if self.concurrency else []
        if self.rate:
            found.append(Bound(f"{name}:rate", rate=self.rate, per=milliseconds(self.per)))
        return found


def checked_limit(what: str, limit: Any) -> Limit | None:
    """Return a limit, or none where there is none."""
    if limit is None or isinstance(limit, Limit):
        return limit
    raise InvalidDefinition(f"{what} is a Limit(concurrency=…, rate=…), not {limit!r}")


def in_order(bounds: Iterable[Bound]) -> tuple[Bound, ...]:
    """Return bounds as they are taken: places by name, so that no two calls wait for each other;
    then rates, which are paid for last."""
    return tuple(sorted(bounds, key=lambda bound: (bound.rate > 0, bound.name)))
