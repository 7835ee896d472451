"""`outlast logs`: what happened in a session, one line each."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

import typer

from outlast.cli.terminal.event_line import event_line
from outlast.cli.terminal.follow import follow as follow_session
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    AsRaw,
    SessionId,
    StoreUrl,
    open_place,
)
from outlast.cli.terminal.output import json_line, out
from outlast.cli.terminal.run import command
from outlast.core.event import Event
from outlast.session.merged_events import LocalSource, MergedEvents

STYLES = {"turn": "bold", "session": "dim", "step": "dim", "delivery": "cyan", "request": "yellow"}


@command
async def logs(
    session: SessionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new events until Ctrl-C.")
    ] = False,
    after: Annotated[str, typer.Option(help="Begin after this cursor or offset.")] = "0",
    internals: Annotated[
        bool, typer.Option("--internals", help="Also what readers do not see.")
    ] = False,
    children: Annotated[
        bool, typer.Option("--children", help="Also of the sessions that it has started.")
    ] = False,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
    raw: AsRaw = False,
) -> None:
    """Print a session's events, one on a line.

    With --json each line is a JSON value. Offsets rise with gaps where --internals is not given.
    With --children a line ends with the session that it is of, unless that is the first.

    Example: outlast logs ses_01J9ZK… -f --after 120
    """
    async with open_place(store) as app:
        handle = await app.session(session)
        follow_one = partial(follow_session, app.store, internals=internals)
        if follow and children:
            here = LocalSource(app.store, app.agents, follow_one, follow=True)
            events: AsyncIterator[Event] = MergedEvents(here, follow=True).read(handle.id, after)
        elif follow:
            events = follow_one(handle.id, after)
        else:
            events = handle.events(after, follow=False, internals=internals, children=children)
        async for event in events:
            if as_json:
                print(json_line(event), flush=follow)
            else:
                of_whom = f"  [{event.path[-1]}]" if event.path else ""
                out(event_line(event) + of_whom, STYLES.get(event.type.partition(".")[0], ""))
