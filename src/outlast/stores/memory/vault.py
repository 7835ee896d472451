"""Secrets, and holds of names. Both run out."""

from __future__ import annotations

from outlast.store import StoredSecret
from outlast.stores.memory.table import Tables


def keep(tables: Tables, secret: StoredSecret, expected: int | None, now: int) -> bool:
    known = find(tables, secret.tenant, secret.name, now)
    if (known.version if known else None) != expected:
        return False
    tables.secrets[secret.tenant, secret.name] = secret
    return True


def find(tables: Tables, tenant: str, name: str, now: int) -> StoredSecret | None:
    secret = tables.secrets.get((tenant, name))
    return None if secret and 0 < secret.expires_at <= now else secret


def hold(tables: Tables, name: str, holder: str, until: int, now: int) -> bool:
    other, held_until = tables.holds.get(name, ("", 0))
    if other not in ("", holder) and held_until > now:
        return False
    tables.holds[name] = (holder, until)
    return True


def let_go(tables: Tables, name: str, holder: str) -> None:
    if tables.holds.get(name, ("", 0))[0] == holder:
        del tables.holds[name]
