"""The milestones of a session, read from its log.

Owns what people see of one. What makes a call a milestone is in `agents/milestone.py`, what the
model sees from there on in `core/view.py`; the state at a milestone is read by
`session/state.py`.
"""

from collections.abc import AsyncGenerator
from datetime import datetime

from msgspec import Struct

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.core.name import turn_and_step
from outlast.store import Store


class Milestone(Struct, frozen=True, kw_only=True):
    """A point of progress that is worth keeping.

    The call `call_id` of the `lane` has reached it. `offset` is its place in the log: the session's
    state there is its snapshot. `title` is that of a plan's step, where it is one.
    """

    title: str = ""
    lane: str
    turn: str
    call_id: str
    at: datetime
    offset: int


async def read_milestones(
    store: Store, session_id: str, after: int = 0
) -> AsyncGenerator[Milestone, None]:
    """Yield the milestones behind an offset, oldest first. Large values are not read."""
    cursor = after
    while True:
        page = await store.log.read(session_id, cursor, large=False)
        for entry in page.entries:
            if isinstance(entry.record, r.MilestoneReached) and entry.offset > after:
                yield milestone_of(entry, entry.record)
        if page.cursor <= cursor:
            return
        cursor = page.cursor


def milestone_of(entry: r.Entry, reached: r.MilestoneReached) -> Milestone:
    return Milestone(
        title=reached.title,
        lane=entry.lane,
        turn=turn_and_step(reached.call_id)[0],
        call_id=reached.call_id,
        at=date_of(entry.at),
        offset=entry.offset,
    )
