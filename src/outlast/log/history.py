"""A lane's conversation, message by message, from its beginning or from where a page ended.

Owns the cursor of a page: the offset of a record behind which nothing is open, and how many
messages were given since. So a page costs what is on it, not what was said before. Knows no HTTP;
what a message is made of is known to `outlast.core.view`.
"""

import re
from collections.abc import AsyncGenerator
from typing import NamedTuple

from outlast.core import record as r
from outlast.core.event import MOST_DIGITS, shown
from outlast.core.message import Message
from outlast.core.view import View
from outlast.errors import CursorAhead, InvalidCursor
from outlast.store import Store

CURSOR = rf"^[0-9]{{1,{MOST_DIGITS - 1}}}\.[0-9]{{1,9}}$"
_cursor = re.compile(CURSOR)

Rest = r.StepCompleted | r.TurnCompleted | r.TurnFailed | r.TurnCancelled
"""Records behind which no call and no answer is open: reading can begin there."""


class HistoryPlace(NamedTuple):
    """A place between two messages: behind a record, and behind so many messages after that."""

    after: int = 0
    given: int = 0

    def __str__(self) -> str:
        return f"{self.after}.{self.given}"


START = HistoryPlace()


def place_of(cursor: str) -> HistoryPlace:
    """Return the place that a cursor names."""
    if not _cursor.fullmatch(cursor):
        raise no_place(cursor)
    after, given = cursor.split(".")
    return HistoryPlace(int(after), int(given))


def no_place(cursor: str) -> InvalidCursor:
    return InvalidCursor(
        f"`cursor` is what a page of this conversation gave as next_cursor, not {shown(cursor)}",
        cursor="cursor",
    )


class HistoryReader:
    """Reads the conversation of one lane, about a page of the log in memory at once."""

    def __init__(
        self, store: Store, session_id: str, lane: str, place: HistoryPlace = START
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._lane = lane
        self._start = place
        self._view = View(keeps_all=True)
        self._passed = 0
        """How many messages of the view were passed on, or stand before the start."""
        self._place = HistoryPlace(place.after)

    async def read(self) -> AsyncGenerator[tuple[HistoryPlace, Message], None]:
        """Give each message with the place behind it. Raises InvalidCursor for a made-up place."""
        async for entry in self._entries():
            await self._supply(entry.record)
            self._view.see((entry.record,), entry.offset)
            # A partial answer may still become one with what goes on from it.
            for message in self._ready(self._view.unsettled):
                yield message
            # Nothing is open behind it: the messages are dropped, and the next page can begin here.
            if isinstance(entry.record, Rest) and not self._view.unsettled:
                self._view.pass_on()
                self._passed, self._place = 0, HistoryPlace(entry.offset)
        for message in self._ready(0):
            yield message

    def _ready(self, unsettled: int) -> list[tuple[HistoryPlace, Message]]:
        """Return the messages that are new, without those that may still become another."""
        found = []
        for message in self._view.messages[self._passed : len(self._view.messages) - unsettled]:
            self._passed += 1
            self._place = HistoryPlace(self._place.after, self._place.given + 1)
            if self._place.after > self._start.after or self._place.given > self._start.given:
                found.append((self._place, message))
        return found

    async def _entries(self) -> AsyncGenerator[r.Entry, None]:
        """Give the lane's entries behind the place."""
        # One record before: the first that is read has to be the one that the place names.
        cursor = max(0, self._start.after - 1)
        is_checked = not self._start.after
        while True:
            try:
                page = await self._store.log.read(self._session_id, cursor)
            except CursorAhead:
                raise no_place(str(self._start)) from None
            for entry in page.entries:
                if not is_checked:
                    self._check(entry)
                    is_checked = True
                elif entry.lane == self._lane:
                    yield entry
            if page.cursor <= cursor:
                break
            cursor = page.cursor
        if not is_checked:
            raise no_place(str(self._start))

    def _check(self, entry: r.Entry) -> None:
        is_there = entry.offset == self._start.after and entry.lane == self._lane
        if not is_there or not isinstance(entry.record, Rest):
            raise no_place(str(self._start))

    async def _supply(self, record: r.AnyRecord) -> None:
        """Read a message that is taken up now, and arrived before the place."""
        # Arrivals stand where they came, which may be before the place at which the turn took them.
        if not isinstance(record, r.TurnStarted | r.DeliveryJoined) or not self._start.after:
            return
        if self._view.has_queued(record.delivery_id):
            return
        delivery = await self._store.listing.delivery(record.delivery_id)
        if delivery and delivery.offset <= self._start.after:
            page = await self._store.log.read(self._session_id, delivery.offset - 1, 1)
            found = [e.record for e in page.entries if e.offset == delivery.offset]
            self._view.see(found, delivery.offset)
