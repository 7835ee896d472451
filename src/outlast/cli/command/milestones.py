"""`outlast milestones`: the points of progress that a session has reached."""

from outlast.cli.terminal.option import DEFAULT_STORE, AsJson, SessionId, StoreUrl, open_place
from outlast.cli.terminal.output import json_out, moment, one_line, out, table
from outlast.cli.terminal.run import command
from outlast.log.milestone import Milestone

HEADERS = ("LANE", "REACHED", "CALL", "OFFSET", "TITLE")


@command
async def milestones(
    session: SessionId,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """List a session's milestones, oldest first.

    OFFSET is its place in the log. TITLE is that of the step of a plan, where it is one.

    Example: outlast milestones ses_01J9ZK…
    """
    async with open_place(store) as app:
        found = await (await app.session(session)).milestones()
    if as_json:
        json_out(found)
    elif found:
        table(HEADERS, [row(milestone) for milestone in found])
    else:
        out("no milestones")


def row(milestone: Milestone) -> tuple[str, ...]:
    return (
        milestone.lane,
        moment(milestone.at),
        milestone.call_id,
        str(milestone.offset),
        one_line(milestone.title) or "-",
    )
