"""`outlast retry`: a failed turn once more."""

from typing import Annotated

import typer

from outlast.cli.command.send import show_receipt
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    SessionId,
    StoreUrl,
    note_idleness,
    open_place,
)
from outlast.cli.terminal.run import command


@command
async def retry(
    session: SessionId,
    lane: Annotated[str, typer.Option(help="The lane of the session whose turn it is.")] = "main",
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Try a session's failed turn again.

    It goes on from where it failed; nothing is said anew, and nothing recorded is done again.

    Example: outlast retry ses_01J9ZK
    """
    async with open_place(store) as app:
        receipt = await (await app.session(session)).retry(lane=lane)
        await note_idleness(app.store, as_json=as_json)
        show_receipt(receipt, as_json=as_json)
