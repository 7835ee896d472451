"""How far a schedule is settled, in the one number that the store keeps of its past.

Instants are whole minutes, so the milliseconds are free to say how the last of them ended. All
instants up to a mark are settled: they fired, or never will.
"""

from __future__ import annotations

from outlast.integration.schedule.cron import MINUTE

FIRED, SKIPPED, MISSED, ARMED = range(4)
"""A session was started; the session before was not over; nobody was there; it began to count."""

WORDS = {FIRED: "fired", SKIPPED: "skipped", MISSED: "missed", ARMED: ""}


def mark(at: int, how: int) -> int:
    """Return the mark for all instants up to a moment."""
    return at - at % MINUTE + how


def read_mark(text: int) -> tuple[int, int]:
    """Return up to which minute all is settled, and how it ended."""
    how = text % MINUTE
    return text - how, how if how in WORDS else ARMED


def furthest(known: int, new: int) -> int:
    """Return the mark that goes further; of two for the same minute, the new one."""
    return new if read_mark(new)[0] >= read_mark(known)[0] else known
