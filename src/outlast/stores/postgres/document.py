"""The topic `document` in PostgreSQL. See `outlast.store.document` for the promises.

Each write is a transaction of its own. An answer that was lost is made up for by looking again.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from outlast.store import Document
from outlast.stores.postgres.access import PostgresAccess
from outlast.stores.postgres.pipeline import Row


class PostgresDocument:
    """See `outlast.store.DocumentStore`."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access

    async def get(self, kind: str, tenant: str, name: str) -> Document | None:
        return await self._find({"kind": kind, "name": name, "tenant": tenant})

    async def find(self, kind: str, name: str) -> Document | None:
        return await self._find({"kind": kind, "name": name, "tenant": None})

    async def _find(self, key: dict[str, Any]) -> Document | None:
        rows = await self._access.ask("document", key)
        return describe(rows[0]) if rows else None

    async def scan(
        self, kind: str, *, tenant: str | None = None, prefix: str = ""
    ) -> Sequence[Document]:
        wanted = {"kind": kind, "tenant": tenant, "prefix": prefix}
        return [describe(row) for row in await self._access.ask("documents", wanted)]

    async def put(
        self, document: Document, *, expected: int | None, lifetime: int | None = None
    ) -> bool:
        name = "add_document" if expected is None else "replace_document"
        params = {**asdict(document), "expected": expected, "lifetime": lifetime}
        statement, doubts = self._access.queries[name].bind(params), list[bool]()
        rows = await self._access.parts().ungrouped.ask(statement, lambda: doubts.append(True))
        if rows or not doubts:
            return bool(rows)
        # The first try may have landed: then the document is there as this caller wrote it.
        found = await self.get(document.kind, document.tenant, document.name)
        return found is not None and is_same(found, document)

    async def delete(self, document: Document) -> bool:
        statement, doubts = self._access.queries["delete_document"].bind(asdict(document)), []
        rows = await self._access.parts().ungrouped.ask(statement, lambda: doubts.append(True))
        if rows or not doubts:
            return rows == [(True,)]
        # The first try may have landed: then there is none, or one that came after it.
        found = await self.get(document.kind, document.tenant, document.name)
        return found is None or not is_same(found, document)


def is_same(found: Document, document: Document) -> bool:
    return (found.version, found.data) == (document.version, document.data)


def describe(row: Row) -> Document:
    kind, tenant, name, version, due_at, expires_at, data = row
    return Document(
        kind=kind,
        tenant=tenant,
        name=name,
        version=version,
        due_at=due_at,
        expires_at=expires_at,
        data=data,
    )
