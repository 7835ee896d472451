"""Secrets, and holds of names. Both run out, by the store's clock."""

from __future__ import annotations

from msgspec.structs import asdict

from outlast.store import StoredSecret
from outlast.stores.sqlite.unit_of_work import UnitOfWork


def keep(desk: UnitOfWork, secret: StoredSecret, expected: int | None) -> bool:
    """Keep a secret if there is none, or in the place of the expected version."""
    values = {**asdict(secret), "expected": expected, "now": desk.clock.now()}
    if expected is not None:
        return desk.db.run("replace_secret", values) > 0
    desk.db.run("sweep_secrets", values)
    return desk.db.run("add_secret", values) > 0


def find(desk: UnitOfWork, tenant: str, name: str) -> StoredSecret | None:
    key = {"tenant": tenant, "name": name, "now": desk.clock.now()}
    if row := desk.db.one("secret", key):
        tenant, name, data, version, expires_at = row
        return StoredSecret(
            tenant=tenant, name=name, data=data, version=version, expires_at=expires_at
        )
    return None


def drop(desk: UnitOfWork, tenant: str, name: str) -> bool:
    key = {"tenant": tenant, "name": name, "now": desk.clock.now()}
    return desk.db.one("drop_secret", key) == (1,)


def hold(desk: UnitOfWork, name: str, holder: str, length: int) -> bool:
    values = {"name": name, "holder": holder, "length": length, "now": desk.clock.now()}
    return desk.db.run("hold", values) > 0


def let_go(desk: UnitOfWork, name: str, holder: str) -> None:
    desk.db.run("let_go", {"name": name, "holder": holder})
