"""The only reader of time and chance.

Everything that needs either is given a Clock; tests give one of their own.
"""

import random
import secrets
import time
from uuid import UUID

from ulid import ULID

BOOTTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux has a clock for that; macOS counts suspended time in this one, which `monotonic` does not
read there."""


DerivedId = UUID
"""An id that is made of what is known, not of chance."""


def uuid_of(data: bytes) -> DerivedId:
    """Return 16 bytes that are as good as chance as the id that they make."""
    return UUID(bytes=data, version=4)


class Clock:
    """Real time, real chance.

    A clock that `is_shared` is a test's: a database server goes by it as well.
    """

    is_shared = False

    def now(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go back, for measuring spans."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return seconds that never go back, and that count while the machine is suspended."""
        return time.clock_gettime(BOOTTIME)

    def new_id(self, prefix: str) -> str:
        """Return a new id that sorts by the time it was made: `ses_01J…`."""
        return f"{prefix}_{ULID()}"

    def token(self) -> str:
        """Return an unguessable token."""
        return secrets.token_urlsafe(24)

    def jitter(self, most: float) -> float:
        """Return a number between half of `most` and all of it."""
        return most * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing
