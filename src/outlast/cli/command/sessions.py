"""`outlast sessions`: which sessions there are."""

from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    FailedSince,
    FailureCode,
    StoreUrl,
    open_place,
    past_of,
)
from outlast.cli.terminal.output import json_out, moment, one_line, out, table
from outlast.cli.terminal.run import command
from outlast.core.lane import Status
from outlast.session.listing import STATUSES
from outlast.store import SessionInfo


@command
async def sessions(
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those that are: {', '.join(STATUSES)}.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only those whose last turn failed.")
    ] = False,
    code: FailureCode = None,
    since: FailedSince = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first.

    With --failed, --code or --since it says why and since when their last turn has failed.

    Example: outlast sessions --status waiting
    """
    if status is not None and status not in STATUSES:
        raise typer.BadParameter(
            f"{status!r} is none of: {', '.join(STATUSES)}", param_hint="'--status'"
        )
    async with open_place(store) as app:
        found = await app.sessions(
            tenant=tenant,
            agent=agent,
            status=cast("Status | None", status),
            failed=failed,
            code=code,
            since=past_of(since),
            limit=limit,
        )
    if as_json:
        json_out([plain(info) for info in found])
    elif found:
        show(found, with_failures=failed or bool(code or since))
    else:
        out("no sessions")


def show(found: Sequence[SessionInfo], *, with_failures: bool) -> None:
    """Print a table, with whose the sessions are where they are of several tenants."""
    several = len({info.tenant for info in found}) > 1
    why = ("SINCE", "CODE", "MESSAGE") if with_failures else ("CHANGED", "OFFSET")
    headers = ("SESSION", *(("TENANT",) if several else ()), "AGENT", "STATUS", *why)
    told = failure_row if with_failures else change_row
    rows = [(*start_of_row(info, with_tenant=several), *told(info)) for info in found]
    table(headers, rows)


def start_of_row(info: SessionInfo, *, with_tenant: bool) -> tuple[str, ...]:
    whose = (info.tenant,) if with_tenant else ()
    return info.session_id, *whose, info.agent, info.status


def change_row(info: SessionInfo) -> tuple[str, ...]:
    return moment(info.updated_at), str(info.end)


def failure_row(info: SessionInfo) -> tuple[str, ...]:
    failure = info.failure
    if failure is None:  # its next turn has begun since it was found
        return "-", "-", "-"
    return moment(failure.since), failure.code, one_line(failure.message, 80)


def plain(info: SessionInfo) -> dict[str, Any]:
    """Return a session without its continuation token: a list should hand out no keys."""
    values = asdict(info)
    del values["token"]
    return {**values, "failure": info.failure}
