"""`outlast anchor`: a session is told in a thread of a channel from now on."""

from typing import Annotated

import typer

from outlast.cli.command.send import show_receipt
from outlast.cli.terminal.loading import load_app
from outlast.cli.terminal.option import AsJson, SessionId, note_idleness, person
from outlast.cli.terminal.run import command


@command
async def anchor(
    session: SessionId,
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="A channel of the app.")],
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="A thread of it.")],
    app: Annotated[str, typer.Option(metavar="MODULE:APP", help="Whose channels: shop:app")],
    as_json: AsJson = False,
) -> None:
    """Tell what happens in a session in a thread of a channel from now on.

    Messages to its old address are forwarded.

    Example: outlast anchor ses_01J9ZK… desk room-7 --app shop:app
    """
    own = load_app(app)
    own.settings = None
    async with own:
        receipt = await own.channels.anchor(session, channel, thread, principal=person(None))
        await note_idleness(own.store, as_json=as_json)
    show_receipt(receipt, as_json=as_json)
