"""`outlast rewind`: a session's model sees nothing of its last turns."""

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
    person,
)
from outlast.cli.terminal.run import command


@command
async def rewind(
    session: SessionId,
    to: Annotated[str, typer.Argument(metavar="TURN", help="The last turn it still sees: t3")],
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show the model the session as it was after a turn. The log and the state stay.

    Example: outlast rewind ses_01J9ZK… t3
    """
    async with open_place(store) as app:
        handle = await app.session(session)
        receipt = await handle.rewind(to, principal=person(None))
        await note_idleness(app.store, as_json=as_json)
    show_receipt(receipt, as_json=as_json)
