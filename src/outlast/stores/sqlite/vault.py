"""Secrets, and holds of names. Both run out, by the store's clock."""

from __future__ import annotations

from msgspec.structs import asdict

from outlast.store import StoredSecret
from outlast.stores.sqlite.database import Database


def keep(db: Database, secret: StoredSecret, expected: int | None) -> bool:
    """Keep a secret if there is none, or in the place of the expected version."""
    values = {**asdict(secret), "expected": expected, "now": db.clock.now()}
    if expected is not None:
        return db.run("replace_secret", values) > 0
    db.run("sweep_secrets", values)
    return db.run("add_secret", values) > 0


def find(db: Database, tenant: str, name: str) -> StoredSecret | None:
    key = {"tenant": tenant, "name": name, "now": db.clock.now()}
    if row := db.one("secret", key):
        tenant, name, data, version, expires_at = row
        return StoredSecret(
            tenant=tenant, name=name, data=data, version=version, expires_at=expires_at
        )
    return None


def drop(db: Database, tenant: str, name: str) -> bool:
    key = {"tenant": tenant, "name": name, "now": db.clock.now()}
    return db.one("drop_secret", key) == (1,)


def hold(db: Database, name: str, holder: str, length: int) -> bool:
    values = {"name": name, "holder": holder, "length": length, "now": db.clock.now()}
    return db.run("hold", values) > 0


def let_go(db: Database, name: str, holder: str) -> None:
    db.run("let_go", {"name": name, "holder": holder})
