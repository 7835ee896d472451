"""`outlast lanes`: the lanes and their owners."""

from typing import Annotated, cast

import typer

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, moment, out, table
from outlast.cli.terminal.run import command
from outlast.core.lane import Status
from outlast.session.listing import STATUSES
from outlast.store import LaneInfo

HEADERS = ("SESSION", "LANE", "AGENT", "STATUS", "TURN", "QUEUED", "READY", "WORKER", "FENCE")


@command
async def lanes(
    session: Annotated[str | None, typer.Option(help="Only those of this session.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those that are: {', '.join(STATUSES)}.")
    ] = None,
    worker: Annotated[str | None, typer.Option(help="Only those that this worker owns.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List lanes, those of the newest session first.

    READY is when a lane without an owner is to be claimed. FENCE counts its claims.

    Example: outlast lanes --status running
    """
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(
            f"{status!r} is none of: {', '.join(STATUSES)}", param_hint="'--status'"
        )
    async with open_place(store) as app:
        found = await app.workers.lanes(
            session_id=session,
            tenant=tenant,
            agent=agent,
            status=cast("Status | None", status),
            worker=worker,
            limit=limit,
        )
    if as_json:
        json_out(found)
    elif found:
        table(HEADERS, [row(info) for info in found])
    else:
        out("no lanes")


def row(info: LaneInfo) -> tuple[str, ...]:
    ready = moment(info.ready_at) if info.ready_at and not info.worker else "-"
    return (
        info.session_id,
        info.lane,
        info.agent,
        info.status,
        info.turn or "-",
        str(info.queued),
        ready,
        info.worker or "-",
        str(info.fence),
    )
