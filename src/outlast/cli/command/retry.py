"""`outlast retry`: a failed turn once more, or many of them."""

from typing import Annotated

import typer

from outlast.cli.command.send import show_receipt
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    FailedInQueue,
    FailedSince,
    FailureCode,
    SessionOrMany,
    StoreUrl,
    note_idleness,
    open_place,
    past_of,
    person,
)
from outlast.cli.terminal.output import json_out, out
from outlast.cli.terminal.run import command
from outlast.session.bulk import BulkRetry


@command
async def retry(
    session: SessionOrMany = None,
    lane: Annotated[str, typer.Option(help="The lane of the session whose turn it is.")] = "main",
    code: FailureCode = None,
    queue: FailedInQueue = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    since: FailedSince = None,
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All turns that have failed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Try a session's failed turn again, or all that --code, --agent, --queue, … choose.

    It goes on from where it failed: no message is sent again, and recorded work is not repeated. Of
    many, each failed turn is retried once; turns that are no longer the last of their lane are
    left.

    Example: outlast retry ses_01J9ZK…
    """
    is_bulk = (
        every or dry_run or any(each is not None for each in (code, agent, queue, since, tenant))
    )
    if is_bulk == (session is not None):
        raise typer.BadParameter("name a session, or choose many by --code, …, or all by --all")
    async with open_place(store) as app:
        if session is not None:
            receipt = await (await app.session(session)).retry(lane=lane)
            await note_idleness(app.store, as_json=as_json)
            show_receipt(receipt, as_json=as_json)
            return
        result = await app.bulk.retry(
            code=code,
            agent=agent,
            queue=queue,
            since=past_of(since),
            tenant=tenant,
            principal=person(None),
            dry_run=dry_run,
        )
        if result.retried and not dry_run:
            await note_idleness(app.store, as_json=as_json)
    if as_json:
        json_out(result)
    else:
        out(told(result, dry_run=dry_run))


def told(result: BulkRetry, *, dry_run: bool) -> str:
    verb = "would retry" if dry_run else "retrying"
    return f"{verb} {result.retried:,} failed turns; {result.left:,} left as they are"
