"""The log as readers get it: events with whole texts, and what a turn came to.

Reads committed entries only, holds nothing between pages, and goes on from a cursor
that may stand on a record which the reader does not see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.event import BEGINNING, Cursor, Deltas, Event, present, requested_args
from outlast.core.message import Part, Text, ToolCall
from outlast.core.usage import TreeUsage
from outlast.core.view import whole_parts
from outlast.store import LogStore, Store
from outlast.store.refusal import cursor_ahead, history_gone

POLL = 1.0
PAGE = 500
NEAR = 8


class Wakeups:
    """Wakes a reader when something was written to its session, and once a second anyway.

    With `only_rests` not by every commit, but when a lane was given back or something arrived.
    """

    def __init__(self, store: Store, session_id: str, *, only_rests: bool = False) -> None:
        self._store = store
        self._session_id = session_id
        self._only_rests = only_rests
        self._event = asyncio.Event()

    def __enter__(self) -> Wakeups:
        self._stop = self._store.work.listen(self._heard, self._session_id)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _heard(self, session_id: str, arrived: bool) -> None:
        if arrived or not self._only_rests:
            self._event.set()

    def clear(self) -> None:
        """Forget what was heard: call this before looking, so that nothing is missed."""
        self._event.clear()

    async def wait(self) -> bool:
        """Wait for something to look at, and say whether there was anything."""
        try:
            async with asyncio.timeout(POLL):
                return await self._event.wait()
        except TimeoutError:
            return False


class EntriesBefore:
    """The entries before an offset, newest first.

    Pages are small at first: what is looked for mostly stands near. It is no generator, so that
    nothing has to be closed when it was found.
    """

    def __init__(self, log: LogStore, session_id: str, before: int) -> None:
        self._log = log
        self._session_id = session_id
        self._before = before
        self._limit = NEAR
        self._page: list[r.Entry] = []

    def __aiter__(self) -> EntriesBefore:
        return self

    async def __anext__(self) -> r.Entry:
        while not self._page:
            # Offsets begin at 1.
            if self._before <= 1:
                raise StopAsyncIteration
            page = await self._log.read_back(self._session_id, self._before, self._limit)
            self._page = [entry for entry in page.entries if entry.offset < self._before]
            self._before = page.cursor if page.entries and page.cursor < self._before else 0
            self._limit = min(4 * self._limit, PAGE)
        return self._page.pop()


async def confirm(log: LogStore, session_id: str, cursor: Cursor) -> Cursor:
    """Return a cursor with its checksum; refuse one of another history than the log's."""
    if not cursor.offset:
        return BEGINNING
    # A page says the checksum of the row that its cursor stands on: one entry is enough to compare.
    page = await log.read(session_id, cursor.offset, 1)
    if cursor.checksum and cursor.checksum != page.checksum:
        raise history_gone(session_id, cursor.offset)
    return Cursor(cursor.offset, page.checksum)


class EventReader:
    """Turns pages of a session's log into events.

    Each page is compared with the one before: a log that is another one now is HistoryGone.
    """

    def __init__(
        self,
        store: Store,
        session_id: str,
        after: Cursor,
        internals: bool,
        *,
        limit: int = PAGE,
    ) -> None:
        self.cursor, self._checksum = after
        self._store = store
        self._session_id = session_id
        self._internals = internals
        self.limit = limit
        self.is_at_end = False
        self._is_confirmed = not self._checksum
        self._deltas: Deltas = {}
        self._began: dict[tuple[str, int], int] = {}
        self._args: dict[str, str] = {}

    def check(self, end: int) -> None:
        """Refuse a cursor that the log has not reached: it belongs to another history."""
        if self.cursor > end:
            raise cursor_ahead(self._session_id, self.cursor, end)

    def is_behind(self, end: int) -> bool:
        """Whether there is something to read in a log that ends there, or to compare with it."""
        return self.cursor < end or not self._is_confirmed

    async def next_page(self) -> list[Event]:
        """Return the events after the cursor, and move it behind all that was read."""
        page = await self._store.log.read(self._session_id, self.cursor, self.limit)
        if self._checksum and page.checksum != self._checksum:
            raise history_gone(self._session_id, self.cursor)
        self._is_confirmed = True
        events = [await self._event(entry) for entry in page.entries if entry.offset > self.cursor]
        if page.entries:
            self.cursor, self._checksum = page.cursor, page.entries[-1].checksum
        self.is_at_end = self.cursor >= page.end
        return [event for event in events if event is not None]

    async def _event(self, entry: r.Entry) -> Event | None:
        record = entry.record
        whole: dict[int, str] = {}
        before = ""
        if isinstance(record, r.MessageDelta | r.ReasoningDelta):
            self._note(entry, record)
        elif isinstance(record, r.MessageAborted):
            self._forget(record)
        elif isinstance(record, r.MessageCompleted):
            whole = await self._whole(entry, record)
            before = await said_before(self._store, self._session_id, entry.offset, record)
            self._args.update(requested_args(record))
        # A reader that began behind the answer has not seen the arguments: they are stored once, in
        # that.
        elif isinstance(record, r.ToolRequested) and record.call_id not in self._args:
            self._args |= await read_args(self._store, self._session_id, entry.offset)
        # Only now: texts of internal records are parts of events that are seen.
        if type(record).internal and not self._internals:
            return None
        event = replace(present(entry, whole, self._args, before), session_id=self._session_id)
        if isinstance(record, r.ToolRequested):
            # Used once: a reader of a long log keeps no more than what is open.
            self._args.pop(record.call_id, None)
        return event

    def _note(self, entry: r.Entry, record: r.MessageDelta | r.ReasoningDelta) -> None:
        key = (record.call_id, record.attempt)
        parts = self._deltas.setdefault(key, {})
        parts[record.part] = parts.get(record.part, "") + record.text
        self._began.setdefault(key, entry.offset)

    def _forget(self, record: r.MessageAborted) -> None:
        key = (record.call_id, record.attempt)
        self._deltas.pop(key, None)
        self._began.pop(key, None)

    async def _whole(self, entry: r.Entry, record: r.MessageCompleted) -> dict[int, str]:
        """Return an answer's streamed texts: from what was read, or from where they begin."""
        key = (record.call_id, record.attempt)
        began, deltas = self._began.pop(key, 0), self._deltas.pop(key, {})
        # The deltas in hand are the whole answer only if this reader read the first of them.
        if not record.streamed or began == record.deltas_from:
            return deltas
        return await read_deltas(self._store, self._session_id, entry.offset, record)


async def read_deltas(
    store: Store, session_id: str, offset: int, record: r.MessageCompleted
) -> dict[int, str]:
    """Return the texts of an answer's parts from the deltas that it points at."""
    cursor, texts = record.deltas_from - 1, dict[int, str]()
    while cursor < offset:
        page = await store.log.read(session_id, cursor)
        for entry in page.entries:
            e = entry.record
            if entry.offset >= offset or not isinstance(e, r.MessageDelta | r.ReasoningDelta):
                continue
            if (e.call_id, e.attempt) == (record.call_id, record.attempt):
                texts[e.part] = texts.get(e.part, "") + e.text
        cursor = page.cursor
    return texts


async def read_args(store: Store, session_id: str, before: int) -> dict[str, str]:
    """Return the arguments in the last answer before an offset: a reader may begin behind it."""
    async for entry in EntriesBefore(store.log, session_id, before):
        if isinstance(entry.record, r.MessageCompleted):
            return requested_args(entry.record)
    return {}


class Outcome(Struct, frozen=True):
    """The outcome of a turn: how it ended, its answer's text or typed output, and its cost."""

    turn: str
    how: str
    text: str = ""
    output: str | None = None
    error: r.Failure | None = None
    usage: TreeUsage = TreeUsage()
    exhausted: str = ""


TurnEnd = r.TurnCompleted | r.TurnFailed | r.TurnCancelled


async def read_outcome(
    store: Store, session_id: str, before: int, wanted: Callable[[str], bool]
) -> Outcome | None:
    """Look back from an offset for the last turn that is wanted and has ended."""
    end: TurnEnd | None = None
    async for entry in EntriesBefore(store.log, session_id, before):
        e = entry.record
        if end is None and isinstance(e, TurnEnd) and wanted(e.turn):
            end = e
        match end:
            case r.TurnFailed():
                return Outcome(end.turn, "failed", error=end.error, usage=usage_of_turn(end))
            case r.TurnCancelled():
                return Outcome(end.turn, "cancelled", usage=usage_of_turn(end))
            case r.TurnCompleted(call_id=call_id):
                if isinstance(e, r.ToolCompleted) and e.call_id == call_id:  # a workflow's body
                    return Outcome(end.turn, "completed", output=e.value, usage=usage_of_turn(end))
                if isinstance(e, r.MessageCompleted) and e.call_id == call_id:
                    return await completed(store, session_id, end, entry.offset, e)
    return None


async def completed(
    store: Store, session_id: str, end: r.TurnCompleted, offset: int, answer: r.MessageCompleted
) -> Outcome:
    texts = await read_deltas(store, session_id, offset, answer) if answer.streamed else {}
    before = await said_before(store, session_id, offset, answer)
    parts = whole_parts(answer, texts, before)
    text = "".join(part.text for part in parts if isinstance(part, Text))
    output, usage = output_args(parts, end.output), usage_of_turn(end)
    return Outcome(end.turn, "completed", text, output, usage=usage, exhausted=end.exhausted)


def usage_of_turn(end: TurnEnd) -> TreeUsage:
    return TreeUsage(end.usage, end.usage + end.below)


async def said_before(
    store: Store, session_id: str, before: int, answer: r.MessageCompleted
) -> str:
    """Return what earlier attempts at an answer had said, where it goes on from there."""
    kept: set[int] = set()
    dropped: set[int] = set()
    said: list[str] = []
    # The usual answer: nothing is read.
    if answer.attempt == 1:
        return ""
    async for entry in EntriesBefore(store.log, session_id, before):
        e = entry.record
        if getattr(e, "call_id", "") != answer.call_id:
            continue
        match e:
            # Newest first: one that was dropped later is met before it is met as kept.
            case r.MessageAborted(kept=False):
                dropped.add(e.attempt)
            case r.MessageAborted() if e.attempt not in dropped:
                kept.add(e.attempt)
            case r.MessageDelta() if e.attempt in kept:
                said.append(e.text)
            case r.ModelStarted(attempt=1):
                break
    return "".join(reversed(said))


def output_args(parts: tuple[Part, ...], call_id: str) -> str | None:
    found = (p.args for p in parts if isinstance(p, ToolCall) and p.call_id == call_id)
    return next(found, None)
