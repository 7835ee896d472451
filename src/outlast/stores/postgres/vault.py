"""Secrets, and holds of names. Both run out, by the database's clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from outlast.store import StoredSecret
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.reconnect import ReconnectingConnection
from outlast.stores.postgres.statement import Query


class SecretTable:
    """Keeps what is sealed. An answer that was lost is made up for by looking again."""

    def __init__(
        self, ungrouped: ReconnectingConnection, readers: Readers, queries: Mapping[str, Query]
    ) -> None:
        self._ungrouped = ungrouped
        self._readers = readers
        self._queries = queries

    async def keep(self, secret: StoredSecret, expected: int | None) -> bool:
        """Keep a secret if there is none, or in the place of the expected version."""
        name = "add_secret" if expected is None else "replace_secret"
        params: dict[str, Any] = {**asdict(secret), "expected": expected}
        doubts: list[bool] = []
        kept = await self._ungrouped.ask(
            self._queries[name].bind(params), lambda: doubts.append(True)
        )
        # No two seal the same thing to the same bytes: if these are there, we brought them.
        return bool(kept) or bool(doubts and await self.find(secret.tenant, secret.name) == secret)

    async def find(self, tenant: str, name: str) -> StoredSecret | None:
        statement = self._queries["secret"].bind({"tenant": tenant, "name": name})
        for tenant, name, data, version, expires_at in await self._readers.ask(statement):
            return StoredSecret(
                tenant=tenant, name=name, data=data, version=version, expires_at=expires_at
            )
        return None

    async def drop(self, tenant: str, name: str) -> bool:
        """Forget a secret; where an answer was lost, what was there is gone by our doing."""
        was_there = await self.find(tenant, name) is not None
        doubts: list[bool] = []
        dropped = await self._ungrouped.ask(
            self._queries["drop_secret"].bind({"tenant": tenant, "name": name}),
            lambda: doubts.append(True),
        )
        return dropped == [(True,)] or bool(doubts and was_there)

    async def hold(self, name: str, holder: str, length: int) -> bool:
        params = {"name": name, "holder": holder, "length": length}
        return bool(await self._ungrouped.ask(self._queries["hold"].bind(params)))

    async def let_go(self, name: str, holder: str) -> None:
        params = {"name": name, "holder": holder}
        await self._ungrouped.ask(self._queries["let_go"].bind(params))
