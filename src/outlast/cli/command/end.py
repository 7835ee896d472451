"""`outlast end`: a session that is not needed any more."""

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
async def end(
    session: SessionId,
    reason: Annotated[str, typer.Option(help="Why; it is kept in the log.")] = "",
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """End a session for good, whatever its lanes are doing. What is queued is refused.

    Its log stays, and can be read.

    Example: outlast end ses_01J9ZK… --reason "the order was withdrawn"
    """
    async with open_place(store) as app:
        await (await app.session(session)).end(reason)
        await note_idleness(app.store, as_json=as_json)
    if as_json:
        json_out({"session_id": session, "requested": "end"})
    else:
        out(f"asked {session} to end")
