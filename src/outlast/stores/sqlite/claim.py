"""Claims: which lanes a worker is given. The choice is one statement, in `queries/claim.sql`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from outlast.store import Claim
from outlast.stores.sqlite.database import (
    Database,
    Row,
    to_json,
)


def write_claim(
    db: Database,
    worker: str,
    limit: int,
    held: Sequence[tuple[str, str]],
    agents: Sequence[str] | None,
    version: int,
    lanes: Sequence[str] | None,
    most: Mapping[str, int],
) -> list[Claim]:
    """Give lanes to the worker, fairly among tenants; those ready for longest first."""
    now = db.clock.now()
    rows = db.all(
        "claim",
        {
            "worker": worker,
            "limit": max(0, limit),
            "held": to_json([f"{session_id} {lane}" for session_id, lane in held]),
            "agents": None if agents is None else to_json(list(agents)),
            "lanes": None if lanes is None else to_json([to_glob(name) for name in lanes]),
            "most": to_json(dict(most)),
            "version": version,
            "now": now,
        },
    )
    rows.sort(key=lambda row: row[-2:])
    return [claim_of(row, now) for row in rows]


def claim_of(row: Row, now: int) -> Claim:
    *known, permits, _, _ = row
    return replace(Claim(*known), permits=tuple(msgspec.json.decode(permits)), now=now)


def to_glob(pattern: str) -> str:
    """Return a pattern in which only `*` is special, as SQLite's GLOB takes it."""
    return "".join(f"[{char}]" if char in "?[" else char for char in pattern)
