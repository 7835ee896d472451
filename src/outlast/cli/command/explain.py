"""`outlast explain`: what a session waits for, and why."""

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, SessionId, StoreUrl, open_place
from outlast.cli.terminal.output import STATUS_STYLES, flat, json_out, moment, out
from outlast.cli.terminal.run import command
from outlast.log.explain import Cause, Explanation

STYLES = {"failure": "red", "request": "yellow", "provider": "yellow", "retry": "yellow"}

UNTIL = {"owner": "lease until", "provider": "next try at"}
"""The meaning of a link's second instant, where it is not the end of the link."""


@command
async def explain(
    session: SessionId, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False
) -> None:
    """Explain what a session does or waits for, lane by lane.

    Each line leads to the next: the open turn, its worker, what it waits for, since when
    and until when, and what is queued behind it.

    Example: outlast explain ses_01J9ZK…
    """
    async with open_place(store) as app:
        told = await (await app.session(session)).explain()
    if as_json:
        json_out(told)
    else:
        show(told)


def show(told: Explanation) -> None:
    out(f"{told.session_id} of {told.agent} is {told.status}", STATUS_STYLES.get(told.status, ""))
    for lane in told.lanes:
        out(f"lane {lane.lane} is {lane.status}", "bold")
        for link in lane.links:
            out(f"  {line(link)}", STYLES.get(link.kind, ""))


def line(link: Cause) -> str:
    """Return a link on one line, with its instants."""
    words = [flat(link.text)]
    if link.fence:
        words.append(f"fence {link.fence}")
    if link.since:
        words.append(f"since {moment(link.since)}")
    if link.until:
        words.append(f"{UNTIL.get(link.kind, 'until')} {moment(link.until)}")
    return ", ".join(words)
