"""Keys to the server: kept, found, listed and revoked. What one opens is not known here."""

from __future__ import annotations

import msgspec

from outlast.store import KeyInfo
from outlast.stores.sqlite.database import (
    Database,
    Row,
)
from outlast.stores.sqlite.listing import names_of


def add(db: Database, key: KeyInfo) -> None:
    scopes = msgspec.json.encode(key.scopes).decode()
    db.run("add_key", {**msgspec.structs.asdict(key), "scopes": scopes})


def find(db: Database, key_id: str) -> KeyInfo | None:
    row = db.one("key", {"key_id": key_id})
    return describe(row) if row else None


def listing(db: Database, tenant: str | None) -> list[KeyInfo]:
    return [describe(row) for row in db.all("keys", {"tenant": tenant})]


def revoke(db: Database, key_id: str, at: int) -> bool:
    return db.run("revoke_key", {"key_id": key_id, "at": at}) > 0


def describe(row: Row) -> KeyInfo:
    key_id, tenant, name, scopes, digest, created_at, revoked_at = row
    return KeyInfo(
        key_id=key_id,
        tenant=tenant,
        name=name,
        scopes=names_of(scopes),
        digest=digest,
        created_at=created_at,
        revoked_at=revoked_at,
    )
