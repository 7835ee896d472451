"""A clock that stands still until it is told to go on, and whose chance is decided by a seed."""

import random

from ulid import ULID

from outlast.clock import Clock

START = 1_700_000_000_000


class ManualClock(Clock):
    """Time that a test sets. The same seed and the same calls give the same ids and tokens."""

    is_shared = True

    def __init__(self, now: int = START, *, seed: int = 0) -> None:
        self._now = now
        self._chance = random.Random(seed)  # noqa: S311 - a test repeats what it guesses
        self._made = 0

    def now(self) -> int:
        return self._now

    def set(self, now: int) -> None:
        """Make it that instant, later or earlier."""
        self._now = now

    def advance(self, milliseconds: int) -> None:
        """Let that much time pass."""
        self._now += milliseconds

    def monotonic(self) -> float:
        return self._now / 1000

    def boottime(self) -> float:
        return self.monotonic()

    def new_id(self, prefix: str) -> str:
        """Return a new id; of two made at the same instant, the later one sorts behind."""
        self._made += 1
        tail = self._made.to_bytes(4, "big") + self._chance.randbytes(6)
        return f"{prefix}_{ULID.from_bytes(self._now.to_bytes(6, 'big') + tail)}"

    def token(self) -> str:
        return self._chance.randbytes(24).hex()

    def jitter(self, most: float) -> float:
        return most * self._chance.uniform(0.5, 1.0)
