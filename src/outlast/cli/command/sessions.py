"""`outlast sessions`: which sessions there are."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    FailedInQueue,
    FailedSince,
    FailureCode,
    StoreUrl,
    open_place,
    past_of,
)
from outlast.cli.terminal.output import json_out, moment, one_line, out, table
from outlast.cli.terminal.run import command
from outlast.core.lane import PROVIDER, Status
from outlast.core.tag import tags_of
from outlast.session import WaitingFor
from outlast.session.listing import STATUSES
from outlast.session.waiting import read_waiting
from outlast.store import SessionInfo, Store


@command
async def sessions(
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those that are: {', '.join(STATUSES)}.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Only those that were started with this tag; may be repeated.",
            show_default=False,
        ),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only those whose last turn failed.")
    ] = False,
    code: FailureCode = None,
    queue: FailedInQueue = None,
    since: FailedSince = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first.

    For a session that waits for its provider, the list has the error, since when, and the next try.
    With --failed, --code, --queue or --since it has the reason and the time of the failure.

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
            tags=tags_of(tag),
            failed=failed,
            code=code,
            queue=queue,
            since=past_of(since),
            limit=limit,
        )
        waits = {info.session_id: await waiting_of(app.store, info) for info in found}
    if as_json:
        json_out([{**plain(info), "waiting_for": waits[info.session_id]} for info in found])
    elif found:
        show(found, waits, with_failures=failed or bool(code or queue or since))
    else:
        out("no sessions")


async def waiting_of(store: Store, info: SessionInfo) -> WaitingFor | None:
    """Return the wait of a session that rests for its provider; others are not looked up."""
    is_resting = any(PROVIDER in lane.wait for lane in info.lanes)
    return await read_waiting(store, info) if is_resting else None


def show(
    found: Sequence[SessionInfo], waits: Mapping[str, WaitingFor | None], *, with_failures: bool
) -> None:
    """Print a table, with whose the sessions are where they are of several tenants."""
    why: tuple[str, ...]
    told: Callable[[SessionInfo], tuple[str, ...]]
    several = len({info.tenant for info in found}) > 1
    if with_failures:
        why, told = ("SINCE", "CODE", "MESSAGE"), failure_row
    elif any(waits.values()):
        # In the place of others: a row with an id that can be copied should fit into a terminal.
        why, told = ("WAITS FOR",), partial(wait_row, waits)
    else:
        why, told = ("CHANGED", "OFFSET"), change_row
    headers = ("SESSION", *(("TENANT",) if several else ()), "AGENT", "STATUS", *why)
    rows = [(*start_of_row(info, with_tenant=several), *told(info)) for info in found]
    table(headers, rows)


def start_of_row(info: SessionInfo, *, with_tenant: bool) -> tuple[str, ...]:
    whose = (info.tenant,) if with_tenant else ()
    return info.session_id, *whose, info.agent, info.status


def change_row(info: SessionInfo) -> tuple[str, ...]:
    return moment(info.updated_at), str(info.end)


def wait_row(waits: Mapping[str, WaitingFor | None], info: SessionInfo) -> tuple[str, ...]:
    """Return the error of a provider that is waited for, since when, and its next try."""
    waiting = waits[info.session_id]
    if waiting is None or waiting.error is None or waiting.since is None:
        return ("-",)
    again = f", next try {moment(waiting.next_try_at)}" if waiting.next_try_at else ""
    return (f"{waiting.kind}: {waiting.error.code} since {moment(waiting.since)}{again}",)


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
