"""The topic `document` in SQLite: keys, secrets, holds, schedules."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.store import KeyInfo, ScheduleInfo, StoredSecret
from outlast.stores.sqlite import key as keys
from outlast.stores.sqlite import schedule as schedules
from outlast.stores.sqlite import vault
from outlast.stores.sqlite.access import Access


class SideTables:
    """See `outlast.store.DocumentStore`."""

    def __init__(self, access: Access) -> None:
        self._write = access.write
        self._read = access.read

    # Keys

    async def add_key(self, key: KeyInfo) -> None:
        await self._write(lambda db: keys.add(db, key))

    async def key(self, key_id: str) -> KeyInfo | None:
        return await self._read(lambda db: keys.find(db, key_id))

    async def keys(self, tenant: str | None = None) -> Sequence[KeyInfo]:
        return await self._read(lambda db: keys.listing(db, tenant))

    async def revoke_key(self, key_id: str, at: int) -> bool:
        (was_there,) = await self._write(lambda db: keys.revoke(db, key_id, at))
        return bool(was_there)

    # Secrets and holds

    async def keep_secret(self, secret: StoredSecret, *, expected: int | None) -> bool:
        (is_kept,) = await self._write(lambda db: vault.keep(db, secret, expected))
        return bool(is_kept)

    async def secret(self, tenant: str, name: str) -> StoredSecret | None:
        return await self._read(lambda db: vault.find(db, tenant, name))

    async def drop_secret(self, tenant: str, name: str) -> bool:
        (was_there,) = await self._write(lambda db: vault.drop(db, tenant, name))
        return bool(was_there)

    async def hold(self, name: str, holder: str, length: int) -> bool:
        (is_held,) = await self._write(lambda db: vault.hold(db, name, holder, length))
        return bool(is_held)

    async def let_go(self, name: str, holder: str) -> None:
        await self._write(lambda db: vault.let_go(db, name, holder))

    # Schedules

    async def arm_schedule(self, schedule: ScheduleInfo) -> None:
        await self._write(lambda db: schedules.arm(db, schedule))

    async def schedules(self) -> Sequence[ScheduleInfo]:
        return await self._read(schedules.listing)

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
        (was_due,) = await self._write(lambda db: schedules.advance(db, step))
        return bool(was_due)

    async def pause_schedule(self, name: str, paused: bool) -> bool:
        (was_there,) = await self._write(lambda db: schedules.pause(db, name, paused))
        return bool(was_there)

    async def drop_schedule(self, name: str) -> bool:
        (was_there,) = await self._write(lambda db: schedules.drop(db, name))
        return bool(was_there)
