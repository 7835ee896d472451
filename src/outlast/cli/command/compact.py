"""`outlast compact`: a shorter view of a long session."""

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
async def compact(
    session: SessionId,
    lane: Annotated[str, typer.Option(help="The lane of the session.")] = "main",
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Shorten what the model is sent of a session from here on. Its log stays whole.

    Example: outlast compact ses_01J9ZK…
    """
    async with open_place(store) as app:
        handle = await app.session(session)
        receipt = await handle.compact(lane=lane, principal=person(None))
        await note_idleness(app.store, as_json=as_json)
    show_receipt(receipt, as_json=as_json)
