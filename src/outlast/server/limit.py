"""How much one caller may ask of this process: so many requests a second, so many streams."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_KNOWN = 10_000
"""So many callers are remembered; of those that are not, nothing is held against them."""


class RateLimiter:
    """A bucket of tokens per caller: `burst` fit in, `rate` are added every second."""

    def __init__(self, rate: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take one token; return 0, or in how many seconds there will be one."""
        if self._rate <= 0:
            return 0.0
        now = self._monotonic()
        left, since = self._buckets.pop(caller, (float(self._burst), now))
        left = min(self._burst, left + (now - since) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._buckets[caller] = (left if wait else left - 1, now)
        if len(self._buckets) > MOST_KNOWN:
            self._buckets.popitem(last=False)
        return wait


class StreamLimiter:
    """Counts the streams that each caller has open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, int] = {}

    def enter(self, caller: str, *, is_limited: bool = True) -> bool:
        """Count one more, or say that there are as many as may be."""
        count = self._open.get(caller, 0)
        if is_limited and 0 < self._most <= count:
            return False
        self._open[caller] = count + 1
        return True

    def leave(self, caller: str) -> None:
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]

    @property
    def total(self) -> int:
        return sum(self._open.values())
