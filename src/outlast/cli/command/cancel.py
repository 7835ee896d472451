"""`outlast cancel`: stop what a session is doing, or many of them."""

import sys
from typing import Annotated, cast

import typer

from outlast.app import Outlast
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    SessionOrMany,
    StoreUrl,
    note_idleness,
    open_place,
    past_of,
    person,
)
from outlast.cli.terminal.output import error_out, json_out, out
from outlast.cli.terminal.run import command
from outlast.core.lane import OpenStatus, Wait
from outlast.session.bulk import BulkCancel
from outlast.session.listing import OPEN_STATUSES, WAITS


@command
async def cancel(
    session: SessionOrMany = None,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the log.")] = "",
    lane: Annotated[str, typer.Option(help="The lane of the session whose turn it is.")] = "main",
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    status: Annotated[
        str | None, typer.Option(help=f"Only those that are: {', '.join(OPEN_STATUSES)}.")
    ] = None,
    waiting: Annotated[
        str | None, typer.Option(help=f"Only those that wait for: {', '.join(WAITS)}.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            help="Only those of sessions started since: 2026-01-31T12:00:00Z, or 30m, 2h, 1d ago."
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All that is open.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before many are stopped.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Stop a session's open turn or next message, or those of many sessions.

    Other queued messages stay. Choose many by --agent, --status, --waiting, --since and --tenant;
    each turn and message is stopped once. At a terminal it asks before it stops many.

    Example: outlast cancel --agent support --waiting provider --since 2h
    """
    chosen = (agent, status, waiting, since, tenant)
    if (every or dry_run or any(each is not None for each in chosen)) == (session is not None):
        raise typer.BadParameter("name a session, or choose many by --agent, …, or all by --all")
    check_word("--status", status, OPEN_STATUSES)
    check_word("--waiting", waiting, WAITS)
    async with open_place(store) as app:
        if session is not None:
            await cancel_one(app, session, reason, lane, as_json=as_json)
            return 0

        async def cancel_all(*, dry_run: bool) -> BulkCancel:
            return await app.bulk.cancel(
                agent=agent,
                status=cast("OpenStatus | None", status),
                waiting=cast("Wait | None", waiting),
                since=past_of(since),
                tenant=tenant,
                reason=reason,
                principal=person(None),
                dry_run=dry_run,
            )

        if not (dry_run or yes) and sys.stdin.isatty():
            count = (await cancel_all(dry_run=True)).cancelled
            if not typer.confirm(f"Stop {count:,} open turns and messages?", err=True):
                error_out("nothing was cancelled")
                return 1
        result = await cancel_all(dry_run=dry_run)
        if result.cancelled and not dry_run:
            await note_idleness(app.store, as_json=as_json)
    if as_json:
        json_out(result)
    else:
        out(told(result, dry_run=dry_run))
    return 0


async def cancel_one(app: Outlast, session: str, reason: str, lane: str, *, as_json: bool) -> None:
    handle = await app.session(session)
    await handle.cancel(reason, lane=lane)
    await note_idleness(app.store, as_json=as_json)
    if as_json:
        json_out({"session_id": session, "requested": "cancel"})
    else:
        out(f"asked {session} to cancel its turn")


def check_word(option: str, value: str | None, words: tuple[str, ...]) -> None:
    if value is not None and value not in words:
        raise typer.BadParameter(
            f"{value!r} is none of: {', '.join(words)}", param_hint=f"'{option}'"
        )


def told(result: BulkCancel, *, dry_run: bool) -> str:
    verb = "would cancel" if dry_run else "cancelling"
    return f"{verb} {result.cancelled:,} turns and messages; {result.left:,} left as they are"
