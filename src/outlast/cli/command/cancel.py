"""`outlast cancel`: stop what a session is doing."""

from typing import Annotated

import typer

from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    SessionId,
    StoreUrl,
    note_idleness,
    open_place,
)
from outlast.cli.terminal.output import json_out, out
from outlast.cli.terminal.run import command


@command
async def cancel(
    session: SessionId,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the log.")] = "",
    lane: Annotated[str, typer.Option(help="The lane of the session whose turn it is.")] = "main",
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Stop a session's open turn, or the message that is next. What else is queued stays.

    Example: outlast cancel ses_01J9ZK --reason "wrong customer"
    """
    async with open_place(store) as app:
        handle = await app.session(session)
        await handle.cancel(reason, lane=lane)
        await note_idleness(app.store, as_json=as_json)
    if as_json:
        json_out({"session_id": session, "requested": "cancel"})
    else:
        out(f"asked {session} to cancel its turn")
