"""Schedules as they stand. What they mean is in the code; here is when each is due."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class ScheduleInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A schedule as it stands: when it is next due, and what it last started.

    `fingerprint` tells one meaning of the same name from another.
    """

    name: str
    fingerprint: str
    next_at: int | None
    paused: bool = False
    fired_at: int = 0
    session_id: str = ""


class ScheduleRows(Protocol):
    """The schedules of all apps on this store."""

    async def arm_schedule(self, schedule: ScheduleInfo) -> None:
        """Add a schedule. One of that name stays as it is, unless its fingerprint differs:
        then all is as given but whether it is paused."""
        ...

    async def schedules(self) -> Sequence[ScheduleInfo]:
        """List schedules by name."""
        ...

    async def advance_schedule(
        self, name: str, seen: int | None, *, next_at: int | None, fired_at: int, session_id: str
    ) -> bool:
        """Move a schedule on if it is still due at `seen`, and say whether it was."""
        ...

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        """Pause a schedule or let it go on, and say whether there is one."""
        ...

    async def drop_schedule(self, name: str) -> bool:
        """Forget a schedule, and say whether there was one."""
        ...
