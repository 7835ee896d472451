"""Taking a session away, with all that is known of it."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.stores.memory.permit import free, permits_of
from outlast.stores.memory.table import SessionRow, Tables


def erase(tables: Tables, session: SessionRow, now: int) -> list[str]:
    """Erase a session, and return those that may go on by that."""
    woken: list[str] = []
    for lane in session.lanes:
        calls = tuple(row.call_id for row in permits_of(tables, session.id, lane))
        woken += free(tables, session.id, lane, calls, now)
    erase_effects(tables, session.id)
    erase_blobs(tables, session)
    for name in session.deliveries:
        del tables.deliveries[name]
    for token in session.tokens:
        for tokens in (tables.tokens, tables.dead_tokens):
            if tokens.get((session.tenant, token)) == session.id:
                del tokens[session.tenant, token]
    tables.requests = {n: row for n, row in tables.requests.items() if row.session_id != session.id}
    tables.cursors = {key: row for key, row in tables.cursors.items() if key[0] != session.id}
    tables.dead_letters = [each for each in tables.dead_letters if each.session_id != session.id]
    del tables.sessions[session.id]
    for other in tables.sessions.values():
        other.is_doomed = other.is_doomed or other.parent == session.id
    return woken


def erase_effects(tables: Tables, session_id: str) -> None:
    """Forget its own idempotency keys; of those that others share keep that they were used."""
    for key, effect in list(tables.effects.items()):
        if effect.session_id != session_id:
            continue
        if effect.scope == f"session:{session_id}" or effect.state == "free":
            del tables.effects[key]
        else:
            tables.effects[key] = replace(effect, state="unknown", value="")


def erase_blobs(tables: Tables, session: SessionRow) -> None:
    for key, users in list(tables.blob_users.items()):
        users.discard(session.id)
        if not users:
            del tables.blob_users[key], tables.blobs[key]
