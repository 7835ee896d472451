"""Keys to the server: kept, found and revoked."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlast.store import KeyInfo
from outlast.stores.postgres.pipeline import Row
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.statement import Query

_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class KeyTable:
    """The keys of all tenants."""

    def __init__(
        self, ungrouped: ReconnectingConnection, readers: Readers, queries: Mapping[str, Query]
    ) -> None:
        self._ungrouped = ungrouped
        self._readers = readers
        self._queries = queries

    async def add(self, key: KeyInfo) -> None:
        params = {**msgspec.structs.asdict(key), "scopes": msgspec.json.encode(key.scopes).decode()}
        await self._ungrouped.ask(self._queries["add_key"].bind(params))

    async def revoke(self, key_id: str, at: int) -> bool:
        statement = self._queries["revoke_key"].bind({"key_id": key_id, "at": at})
        return bool(await self._ungrouped.ask(statement))

    async def find(self, key_id: str) -> KeyInfo | None:
        rows = await self._readers.ask(self._queries["key"].bind({"key_id": key_id}))
        return describe_key(rows[0]) if rows else None

    async def listing(self, tenant: str | None) -> list[KeyInfo]:
        rows = await self._readers.ask(self._queries["keys"].bind({"tenant": tenant}))
        return [describe_key(row) for row in rows]


def describe_key(row: Row) -> KeyInfo:
    key_id, tenant, name, scopes, digest, created_at, revoked_at = row
    return KeyInfo(
        key_id=key_id,
        tenant=tenant,
        name=name,
        scopes=_decode_names(scopes),
        digest=digest,
        created_at=created_at,
        revoked_at=revoked_at,
    )
