"""The topic `document` in SQLite. See `outlast.store.document` for the promises.

Knows nothing of what documents mean: each kind has its accessor elsewhere, such as `log/breaker.py`
and `server/key.py`.
"""

from collections.abc import Sequence
from functools import partial

from msgspec.structs import asdict

from outlast.store import Document
from outlast.stores.sqlite.access import Access
from outlast.stores.sqlite.database import Database, Row


class SqliteDocument:
    """See `outlast.store.DocumentStore`."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def get(self, kind: str, tenant: str, name: str) -> Document | None:
        return await self._access.read(lambda db: find(db, kind, name, tenant))

    async def find(self, kind: str, name: str) -> Document | None:
        return await self._access.read(lambda db: find(db, kind, name, None))

    async def scan(
        self, kind: str, *, tenant: str | None = None, prefix: str = ""
    ) -> Sequence[Document]:
        return await self._access.read(lambda db: scan(db, kind, tenant, prefix))

    async def put(
        self, document: Document, *, expected: int | None, lifetime: int | None = None
    ) -> bool:
        work = partial(put, document=document, expected=expected, lifetime=lifetime)
        (is_written,) = await self._access.write(work)
        return bool(is_written)

    async def delete(self, document: Document) -> bool:
        (was_there,) = await self._access.write(partial(delete, document=document))
        return bool(was_there)


def find(db: Database, kind: str, name: str, tenant: str | None) -> Document | None:
    key = {"kind": kind, "name": name, "tenant": tenant, "now": db.clock.now()}
    row = db.one("document", key)
    return describe(row) if row else None


def scan(db: Database, kind: str, tenant: str | None, prefix: str) -> list[Document]:
    wanted = {"kind": kind, "tenant": tenant, "prefix": prefix, "now": db.clock.now()}
    return [describe(row) for row in db.all("documents", wanted)]


def put(db: Database, document: Document, expected: int | None, lifetime: int | None) -> bool:
    now = db.clock.now()
    values = {**asdict(document), "expected": expected, "now": now}
    if lifetime is not None:
        values["expires_at"] = now + lifetime
    if expected is not None:
        return db.run("replace_document", values) > 0
    # Expired documents give way to new ones, and are removed here so that they do not pile up.
    db.run("sweep_documents", values)
    return db.run("add_document", values) > 0


def delete(db: Database, document: Document) -> bool:
    values = {**asdict(document), "now": db.clock.now()}
    return db.one("delete_document", values) == (1,)


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
