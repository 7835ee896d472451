"""Which faults there are in a simulation, and how often each strikes.

Every seed has a fault plan of its own: some kinds of fault are left out altogether, so that
those which hide each other get their chance alone.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")

RATES = {
    "crash before commit": 0.006,
    "crash after commit": 0.006,
    "commit lost": 0.02,
    "commit unacknowledged": 0.02,
    "statement failed": 0.1,
    "transaction lost": 0.15,
    "transaction unacknowledged": 0.15,
    "admission lost": 0.08,
    "admission unacknowledged": 0.08,
    "claim lost": 0.03,
    "claim unacknowledged": 0.03,
    "permit lost": 0.03,
    "permit unacknowledged": 0.03,
    "crash after permit": 0.02,
    "document lost": 0.05,
    "document unacknowledged": 0.05,
    "read failed": 0.01,
    "slow": 0.02,
    "very slow": 0.002,
    "wake-up lost": 0.1,
    "wake-up repeated": 0.1,
    "wake-up late": 0.1,
    "renewal failed": 0.1,
    "enlisting failed": 0.3,
}
"""How likely each fault is each time that it could strike."""

EVENTS = (
    "killed",
    "killed unseen",
    "paused",
    "paused and taken for dead",
    "taken for dead",
    "renewals fail",
    "clock of a worker jumps",
    "clock of the store jumps",
    "clock of everybody jumps",
    "stopped",
    "started",
)
"""Faults that hit workers from time to time."""


HARMLESS = ("stopped", "started")
COSTLY = frozenset(
    {
        "crash before commit",
        "crash after commit",
        "crash after permit",
        "transaction lost",
        "transaction unacknowledged",
        "claim unacknowledged",
        "enlisting failed",
        "renewal failed",
        *(event for event in EVENTS if event not in HARMLESS),
    }
)
"""The faults that may cost a worker its lanes. No other may ever interrupt what runs."""


class FaultPlan:
    """The faults of one simulation. In some, none of those strikes that may cost a lane."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(f"{seed}/fault_plan")  # noqa: S311 - repeats what it guesses
        strength = self.chance.choice([0.3, 1.0, 1.0, 2.5])
        self.is_sparing = self.chance.random() < 0.25
        spares = COSTLY if self.is_sparing else frozenset()
        self._rates = {
            kind: self._rate(0.0 if kind in spares else rate * strength)
            for kind, rate in RATES.items()
        }
        kinds = [kind for kind in EVENTS if self.chance.random() < 0.6]
        self.events = [kind for kind in kinds if kind not in spares]
        self.is_calm = False

    def _rate(self, usual: float) -> float:
        return self.chance.choice([0.0, usual, usual])

    def calm_down(self) -> None:
        """Let nothing go wrong any more."""
        self.is_calm = True

    def strikes(self, kind: str) -> bool:
        """Say whether a fault strikes this time."""
        rate = 0.0 if self.is_calm else self._rates[kind]
        return rate > 0 and self.chance.random() < rate

    def first(self, kinds: Sequence[str]) -> str:
        """Return the one of several faults that strikes this time, if any does."""
        return next((kind for kind in kinds if self.strikes(kind)), "")

    def between(self, least: float, most: float) -> float:
        return self.chance.uniform(least, most)

    def choose(self, options: Sequence[T]) -> T:
        return self.chance.choice(options)
