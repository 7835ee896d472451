"""When schedules are next due, and what they last started. What they mean is not known here."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import asdict

from outlast.store import ScheduleInfo
from outlast.stores.postgres.pipeline import Row
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.statement import Params, Query


class ScheduleTable:
    """The schedules of all agents. An answer that was lost is made up for by looking again."""

    def __init__(
        self, ungrouped: ReconnectingConnection, readers: Readers, queries: Mapping[str, Query]
    ) -> None:
        self._ungrouped = ungrouped
        self._readers = readers
        self._queries = queries

    async def arm(self, schedule: ScheduleInfo) -> None:
        await self._ungrouped.ask(self._queries["arm_schedule"].bind(asdict(schedule)))

    async def listing(self) -> list[ScheduleInfo]:
        return [
            describe(row) for row in await self._readers.ask(self._queries["schedules"].bind({}))
        ]

    async def advance(self, step: Params) -> bool:
        """Move one on; where an answer was lost, one that stands as wanted was moved by us."""
        doubts: list[bool] = []
        moved = await self._ungrouped.ask(
            self._queries["advance_schedule"].bind(step), lambda: doubts.append(True)
        )
        return bool(moved) or bool(doubts and await self._stands(step))

    async def _stands(self, step: Params) -> bool:
        found = await self._find(step["name"])
        return found is not None and all(
            getattr(found, field) == step[field] for field in ("next_at", "fired_at", "session_id")
        )

    async def _find(self, name: str) -> ScheduleInfo | None:
        return next((info for info in await self.listing() if info.name == name), None)

    async def pause(self, name: str, paused: bool) -> bool:
        params = {"name": name, "paused": paused}
        return bool(await self._ungrouped.ask(self._queries["pause_schedule"].bind(params)))

    async def drop(self, name: str) -> bool:
        was_there = await self._find(name) is not None
        doubts: list[bool] = []
        dropped = await self._ungrouped.ask(
            self._queries["drop_schedule"].bind({"name": name}), lambda: doubts.append(True)
        )
        return bool(dropped) or bool(doubts and was_there)


def describe(row: Row) -> ScheduleInfo:
    name, fingerprint, next_at, paused, fired_at, session_id = row
    return ScheduleInfo(
        name=name,
        fingerprint=fingerprint,
        next_at=next_at,
        paused=paused,
        fired_at=fired_at,
        session_id=session_id,
    )
