"""When the kills strike: chosen from the seed before the story begins.

A cue names a place in the story and a moment there; the same seed gives the same cues.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal

from msgspec import Struct

Phase = Literal["between", "stream", "tool"]
Where = tuple[int, int, Phase]
"""A turn, a step in it, and what is under way there."""

STREAMS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2))
TOOLS = ((1, 1), (1, 2), (1, 3), (2, 1))
EFFECTS = TOOLS[1:]
LAST = STREAMS[-1]
PLACES: tuple[Where, ...] = tuple(
    sorted(
        [(turn, step, "stream") for turn, step in STREAMS]
        + [(turn, step, "between") for turn, step in STREAMS[1:]]
        + [(turn, step, "tool") for turn, step in TOOLS]
    )
)
MOST_KILLS = 2 * len(PLACES)


class KillPoint(Struct, frozen=True, order=True):
    """Strike in such a phase of this step or a later one, at a moment from 0 to 1 of it."""

    turn: int
    step: int
    phase: Phase
    moment: float

    @property
    def place(self) -> tuple[int, int]:
        return self.turn, self.step

    @property
    def deltas(self) -> int:
        """How many pieces of a stream to let pass."""
        return 1 + int(self.moment * 9)

    @property
    def delay(self) -> float:
        """How many seconds to let a tool run."""
        return 0.05 + self.moment * 0.85


def chance(*of: object) -> float:
    """Return a number from 0 to 1 that depends on nothing but what it is the chance of."""
    digest = blake2b(repr(of).encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


def plan(seed: int, kills: int) -> list[KillPoint]:
    """Choose so many places; three or more strike in each phase, one of them amid an effect."""
    shuffled = sorted(PLACES, key=lambda place: chance(seed, place))
    firsts = [
        next(p for p in shuffled if p[2] == "tool" and p[:2] in EFFECTS),
        next(p for p in shuffled if p[2] == "stream"),
        next(p for p in shuffled if p[2] == "between"),
    ]
    order = firsts + [place for place in shuffled if place not in firsts]
    chosen = [order[number % len(order)] for number in range(kills)]
    return sorted(
        KillPoint(turn, step, phase, chance(seed, number))
        for number, (turn, step, phase) in enumerate(chosen)
    )
