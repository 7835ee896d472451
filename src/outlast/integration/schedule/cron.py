"""The instants that a cron line names in a time zone; knows no clock.

Like Debian's cron. A line with a star in its minute or hour names every moment at which the
clock on the wall shows a time that fits, as real time goes on: where the clock is set back, an
hour comes twice. A line of fixed times names each of them once a day: one that comes twice
is the first of both, and one that is left out is the moment at which the clock is set forward.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from outlast.errors import InvalidDefinition

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - what a wall shows has no zone
SECOND = timedelta(seconds=1)
MINUTE = 60_000
SOME_DAY = 1_700_000_000
FIELDS = 5
LONGEST_LINE = 256

STRIDE = 12 * 3600
"""Seconds in which no zone changes its offset twice."""

FIRST_WINDOW = 3_600_000
GROWTH = 8


class CronTimes:
    """When a line is due. Instants are milliseconds since the epoch, and whole minutes."""

    def __init__(self, line: str, timezone: str = "UTC") -> None:
        self.line = checked_line(line)
        self.timezone = timezone
        self.zone = zone_of(timezone)
        minute, hour, *_ = self.line.split()
        self._last = (0, 0)
        self._is_frequent = minute.startswith("*") or hour.startswith("*")
        if next(self.instants(SOME_DAY * 1000), None) is None:
            raise InvalidDefinition(f"the cron line {self.line!r} names no time that ever comes")

    def instants(self, since: int) -> Iterator[int]:
        """Give the instants from `since` on, in order, each once."""
        first = -(-since // 1000)
        found = self._as_time_goes_on(first) if self._is_frequent else self._once_a_day(first)
        return (at * 1000 for at in found)

    def after(self, at: int) -> int | None:
        """Return the first instant after one; None if there is none for decades."""
        since, found = self._last
        if since <= at < found:
            return found
        answer = next(self.instants(at + 1), None)
        self._last = (at, answer or 0)
        return answer

    def latest(self, at: int, since: int) -> int | None:
        """Return the last instant up to `at` that is not before `since`."""
        window, found = FIRST_WINDOW, None
        while True:
            start = max(since, at - window)
            for instant in self.instants(start):
                if instant > at:
                    break
                found = instant
            if found is not None or start == since:
                return found
            window *= GROWTH

    def local(self, at: int) -> datetime:
        """Return an instant as people there write it."""
        return datetime.fromtimestamp(at / 1000, self.zone)

    # In seconds

    def _as_time_goes_on(self, since: int) -> Iterator[int]:
        """Take the times of each stretch in which the wall is off by the same from UTC."""
        while True:
            offset, change = self._offset(since), None
            for wall in CronSim(self.line, wall_at(since - 1, offset)):
                at = seconds_of(wall) - offset
                change = self._first_change(since, at)
                if change is not None:
                    since = change
                    break
                yield at
                since = at
            if change is None:
                return

    def _once_a_day(self, since: int) -> Iterator[int]:
        last = since - 1
        for wall in CronSim(self.line, wall_at(last, self._offset(last))):
            at = self._moment_of(wall)
            if at > last:
                last = at
                yield at

    def _moment_of(self, wall: datetime) -> int:
        """Return when a wall shows a time for the first time, or first goes past it."""
        at = int(wall.replace(tzinfo=self.zone).timestamp())
        if wall_at(at, self._offset(at)) == wall:
            return at
        before = int(wall.replace(tzinfo=self.zone, fold=1).timestamp())
        change = self._first_change(before, at)
        return at if change is None else change

    def _offset(self, at: int) -> int:
        offset = datetime.fromtimestamp(at, self.zone).utcoffset()
        assert offset is not None
        return offset // SECOND

    def _first_change(self, since: int, until: int) -> int | None:
        """Return the first second up to `until` whose offset is not that of `since`."""
        offset = self._offset(since)
        while since < until:
            end = min(since + STRIDE, until)
            if self._offset(end) != offset:
                return self._bisect(since, end, offset)
            since = end
        return None

    def _bisect(self, same: int, other: int, offset: int) -> int:
        while other - same > 1:
            middle = (same + other) // 2
            if self._offset(middle) == offset:
                same = middle
            else:
                other = middle
        return other


def wall_at(at: int, offset: int) -> datetime:
    return EPOCH + (at + offset) * SECOND


def seconds_of(wall: datetime) -> int:
    return (wall - EPOCH) // SECOND


def checked_line(line: Any) -> str:
    """Return a cron line in its plainest form, or say what is wrong with it."""
    if not isinstance(line, str) or len(line) > LONGEST_LINE:
        raise InvalidDefinition(f"a cron line is a text of at most {LONGEST_LINE} characters")
    plain = " ".join(line.split())
    count = len(plain.split())
    if count != FIELDS:
        raise InvalidDefinition(
            f"the cron line {line!r} has {count} fields, and needs {FIELDS}: minute, hour, day of"
            ' the month, month, day of the week, as in "0 9 * * 1-5"',
            line=line,
        )
    try:
        CronSim(plain, datetime.fromtimestamp(SOME_DAY, UTC))
    except (CronSimError, ValueError) as error:
        wrong = str(error).lower() if isinstance(error, CronSimError) else "bad number"
        raise InvalidDefinition(
            f"the cron line {line!r} cannot be understood: {wrong}", line=line
        ) from None
    return plain


def zone_of(name: Any) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        raise InvalidDefinition(
            f'there is no time zone {name!r}; write it as in "Europe/Berlin" or "UTC"',
            timezone=str(name),
        ) from None
