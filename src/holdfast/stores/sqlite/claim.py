"""Who gets which lane."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.store import Claim
from holdfast.stores.sqlite.desk import Desk


def write_claim(
    desk: Desk,
    worker: str,
    limit: int,
    held: Sequence[tuple[str, str]],
    agents: Sequence[str] | None,
    version: int,
) -> list[Claim]:
    """Give lanes to the worker, those ready for longest first."""
    rows = desk.db.all(
        "claim",
        {
            "worker": worker,
            "limit": max(0, limit),
            "held": to_json([f"{session_id} {lane}" for session_id, lane in held]),
            "agents": None if agents is None else to_json(list(agents)),
            "version": version,
            "now": desk.clock.now(),
        },
    )
    rows.sort(key=lambda row: row[-2:])
    return [Claim(*row[:-2]) for row in rows]


def to_json(values: list[str]) -> str:
    return msgspec.json.encode(values).decode()
