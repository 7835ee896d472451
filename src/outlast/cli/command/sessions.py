"""`outlast sessions`: which sessions there are."""

from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.session.listing import STATUSES, Status
from outlast.store import SessionInfo


@command
async def sessions(
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those that are: {', '.join(STATUSES)}.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first.

    Example: outlast sessions --status waiting
    """
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(
            f"{status!r} is none of: {', '.join(STATUSES)}", param_hint="'--status'"
        )
    async with open_place(store) as app:
        found = await app.sessions(
            tenant=tenant, agent=agent, status=cast("Status | None", status), limit=limit
        )
    if as_json:
        json_out([plain(info) for info in found])
    elif found:
        show(found)
    else:
        out("no sessions")


def show(found: Sequence[SessionInfo]) -> None:
    """Print a table, with whose the sessions are where they are of several tenants."""
    several = len({info.tenant for info in found}) > 1
    headers = ("SESSION", *(("TENANT",) if several else ()), "AGENT", "STATUS", "CHANGED", "OFFSET")
    table(headers, [row(info, with_tenant=several) for info in found])


def row(info: SessionInfo, *, with_tenant: bool) -> tuple[str, ...]:
    whose = (info.tenant,) if with_tenant else ()
    changed = moment(info.updated_at)
    return info.session_id, *whose, info.agent, info.status, changed, str(info.end)


def plain(info: SessionInfo) -> dict[str, Any]:
    """Return a session without its continuation token: a list should hand out no keys."""
    values = asdict(info)
    del values["token"]
    return values
