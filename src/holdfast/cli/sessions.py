"""`holdfast sessions`: which sessions there are."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from holdfast.app import STATUSES
from holdfast.cli.output import json_out, moment, out, table
from holdfast.cli.place import DEFAULT_STORE, AsJson, StoreUrl, open_place
from holdfast.cli.run import command
from holdfast.store import SessionInfo


@command
async def sessions(
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those that are: {', '.join(STATUSES)}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first.

    Example: holdfast sessions --status waiting
    """
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(
            f"{status!r} is none of: {', '.join(STATUSES)}", param_hint="'--status'"
        )
    async with open_place(store) as app:
        found = await app.sessions(agent=agent, status=status, limit=limit)
    if as_json:
        json_out([plain(info) for info in found])
    elif found:
        table(("SESSION", "AGENT", "STATUS", "CHANGED", "OFFSET"), [row(info) for info in found])
    else:
        out("no sessions")


def row(info: SessionInfo) -> tuple[str, ...]:
    return info.session_id, info.agent, info.status, moment(info.updated_at), str(info.end)


def plain(info: SessionInfo) -> dict[str, Any]:
    """Return a session without its continuation token: who reads a list needs no keys."""
    values = asdict(info)
    del values["token"]
    return values
