"""`holdfast logs`: what happened in a session, one line each."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.event_line import event_line
from holdfast.cli.following import follow as follow_session
from holdfast.cli.output import json_line, out
from holdfast.cli.place import DEFAULT_STORE, AsJson, SessionId, StoreUrl, open_place
from holdfast.cli.run import command

STYLES = {"turn": "bold", "session": "dim", "step": "dim", "delivery": "cyan", "input": "yellow"}


@command
async def logs(
    session: SessionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, help="Begin after this offset.")] = 0,
    internals: Annotated[
        bool, typer.Option("--internals", help="Also what readers do not see.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Print a session's events, one on a line.

    With --json each line is a JSON value. Offsets rise with gaps where --internals is not given.

    Example: holdfast logs ses_01J9ZK -f --after 120
    """
    async with open_place(store) as app:
        handle = await app.session(session)
        events = (
            follow_session(app.store, handle.id, after, internals=internals)
            if follow
            else handle.events(after, follow=False, internals=internals)
        )
        async for event in events:
            if as_json:
                print(json_line(event), flush=follow)
            else:
                out(event_line(event), STYLES.get(event.type.partition(".")[0], ""))
