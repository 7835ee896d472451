"""When a cron line is due, found by walking through time step by step: an oracle for tests.

Knows nothing of how Outlast finds it: a line is a set of numbers per field, and a zone is what
the clock on the wall shows at each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))

Walls = list[tuple[int, datetime]]


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def walls(zone: str, start: datetime, end: datetime, step: timedelta = MINUTE) -> Walls:
    """Each step of a time, and what the clock on the wall shows at it."""
    there, count = ZoneInfo(zone), (end - start) // step
    moments = (start.astimezone(UTC) + n * step for n in range(count))
    return [(ms(at), at.astimezone(there).replace(tzinfo=None)) for at in moments]


def walk(line: str, along: Walls, step: timedelta = MINUTE) -> Iterator[int]:
    """Give the instants of a line, in milliseconds since the epoch."""
    read = Line(line)
    return as_time_goes_on(read, along) if read.is_frequent else once_a_day(read, along, step)


def as_time_goes_on(line: Line, along: Walls) -> Iterator[int]:
    return (at for at, wall in along if line.fits(wall))


def once_a_day(line: Line, along: Walls, step: timedelta) -> Iterator[int]:
    """A time counts when the clock first comes to it, or past it."""
    highest = along[0][1] - step
    for at, wall in along:
        if wall > highest:
            if any(line.fits(each) for each in steps(highest, wall, step)):
                yield at
            highest = wall


def steps(after: datetime, until: datetime, step: timedelta) -> Iterable[datetime]:
    return (after + n * step for n in range(1, (until - after) // step + 1))


class Line:
    """A cron line as a set of numbers for each of its fields."""

    def __init__(self, text: str) -> None:
        self.fields = text.split()
        self.sets = [numbers(*pair) for pair in zip(self.fields, BOUNDS, strict=True)]

    @property
    def is_frequent(self) -> bool:
        return self.fields[0][0] == "*" or self.fields[1][0] == "*"

    def fits(self, wall: datetime) -> bool:
        minutes, hours, days, months, weekdays = self.sets
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        in_month = wall.day in days
        in_week = not weekdays.isdisjoint({wall.isoweekday(), wall.isoweekday() % 7})
        both = self.fields[2][0] == "*" or self.fields[4][0] == "*"
        return (in_month and in_week) if both else (in_month or in_week)


def numbers(field: str, bounds: tuple[int, int]) -> set[int]:
    low, high = bounds
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{low}-{high}" if span == "*" else span).partition("-")
        end = int(last or (high if step else first))
        found |= set(range(int(first), end + 1, int(step or 1)))
    return found
