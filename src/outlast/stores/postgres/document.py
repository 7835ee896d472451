"""The topic `document` in PostgreSQL: keys, secrets, holds, schedules."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.store import KeyInfo, ScheduleInfo, StoredSecret
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.key import KeyTable
from outlast.stores.postgres.schedule import ScheduleTable
from outlast.stores.postgres.vault import SecretTable


class PostgresDocument:
    """See `outlast.store.DocumentStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    @property
    def _keys(self) -> KeyTable:
        parts = self._access.parts()
        return KeyTable(parts.ungrouped, parts.readers, self._access.queries)

    @property
    def _secrets(self) -> SecretTable:
        parts = self._access.parts()
        return SecretTable(parts.ungrouped, parts.readers, self._access.queries)

    @property
    def _schedules(self) -> ScheduleTable:
        parts = self._access.parts()
        return ScheduleTable(parts.ungrouped, parts.readers, self._access.queries)

    async def add_key(self, key: KeyInfo) -> None:
        await self._keys.add(key)

    async def key(self, key_id: str) -> KeyInfo | None:
        return await self._keys.find(key_id)

    async def keys(self, tenant: str | None = None) -> Sequence[KeyInfo]:
        return await self._keys.listing(tenant)

    async def revoke_key(self, key_id: str, at: int) -> bool:
        return await self._keys.revoke(key_id, at)

    async def keep_secret(self, secret: StoredSecret, *, expected: int | None) -> bool:
        return await self._secrets.keep(secret, expected)

    async def secret(self, tenant: str, name: str) -> StoredSecret | None:
        return await self._secrets.find(tenant, name)

    async def drop_secret(self, tenant: str, name: str) -> bool:
        return await self._secrets.drop(tenant, name)

    async def hold(self, name: str, holder: str, length: int) -> bool:
        return await self._secrets.hold(name, holder, length)

    async def let_go(self, name: str, holder: str) -> None:
        await self._secrets.let_go(name, holder)

    async def arm_schedule(self, schedule: ScheduleInfo) -> None:
        await self._schedules.arm(schedule)

    async def schedules(self) -> Sequence[ScheduleInfo]:
        return await self._schedules.listing()

    async def advance_schedule(
        self, name: str, seen: int | None, *, next_at: int | None, fired_at: int, session_id: str
    ) -> bool:
        step = {
            "name": name,
            "seen": seen,
            "next_at": next_at,
            "fired_at": fired_at,
            "session_id": session_id,
        }
        return await self._schedules.advance(step)

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        return await self._schedules.pause(name, paused)

    async def drop_schedule(self, name: str) -> bool:
        return await self._schedules.drop(name)
