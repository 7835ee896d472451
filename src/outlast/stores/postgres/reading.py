"""Reading a session's log: pages of it, and the rows and snapshots of a fold. Changes nothing.

functions/reading.sql selects the rows; `row.py` unpacks them.
"""

from collections.abc import Mapping
from typing import NamedTuple

from outlast.core.codec import Packer
from outlast.core.lane import FOLD
from outlast.core.record import Entry
from outlast.errors import StoreCorrupt
from outlast.store import FoldSnapshot, Loaded, LogPage
from outlast.store.log import PageFiller, check_snapshot, concerns
from outlast.store.refusal import cursor_ahead, unknown_session
from outlast.stores.postgres.pipeline import Rows
from outlast.stores.postgres.reconnect import Readers
from outlast.stores.postgres.row import BlobMissing, LogRow, Unpacker
from outlast.stores.postgres.statement import Params, Query

MOST_OFFSET = 2**31 - 1


class LogRange(NamedTuple):
    """A session's log as functions/reading.sql gives it: its end, and what was asked for."""

    tenant: str
    end: int
    last_at: int
    checksum: str
    snapshots: dict[str, FoldSnapshot]
    rows: list[LogRow]
    counts: list[int]


class LogReader:
    """Answers about the log."""

    def __init__(
        self,
        readers: Readers,
        queries: Mapping[str, Query],
        packer: Packer,
        unpacker: Unpacker,
    ) -> None:
        self._readers = readers
        self._queries = queries
        self._packer = packer
        self._unpacker = unpacker

    # Pages

    async def read(
        self, session_id: str, after: int, limit: int, *, large: bool, lane: str | None
    ) -> LogPage:
        # The column is an integer, and a cursor comes from the reader.
        first = min(after, MOST_OFFSET)
        params = {"session_id": session_id, "after": first, "limit": limit, "lane": lane}
        found = await self._find("log_after", session_id, params)
        if after > found.end:
            raise cursor_ahead(session_id, after, found.end)
        # Without large values the number of its records bounds a page.
        if large:
            found = await self._until_full(found)
        entries = await self._entries(session_id, found, after, large=large)
        cursor = entries[-1].offset if entries else after
        return LogPage(tuple(entries), cursor, found.end, found.checksum)

    async def read_back(self, session_id: str, before: int, limit: int) -> LogPage:
        params = {"session_id": session_id, "before": min(before, MOST_OFFSET), "limit": limit}
        found = await self._until_full(await self._find("log_before", session_id, params))
        found.rows.reverse()
        everything = await self._entries(session_id, found, 0)
        entries = tuple(entry for entry in everything if entry.offset < before)
        return LogPage(entries, entries[0].offset if entries else before, found.end)

    async def _until_full(self, found: LogRange) -> LogRange:
        """Leave out rows behind which a page is full of large values: the others are not read."""
        sizes = await self._unpacker.sizes(found.tenant, found.rows)
        page, rows = PageFiller(len(sizes)), list[LogRow]()  # the database has counted the records
        for row, size in zip(found.rows, sizes, strict=True):
            rows.append(row)
            page.add(0, size)
            if page.is_full:
                break
        return found._replace(rows=rows)

    # Folds

    async def load(self, session_id: str, lane: str, after: int | None) -> Loaded:
        params = {"session_id": session_id, "lane": lane, "fold": FOLD, "after": after}
        try:
            found = await self._find("load", session_id, params)
        except StoreCorrupt as error:
            # A lane that is followed has no use for snapshots: it is the log itself that is
            # damaged.
            if after is not None:
                raise
            return Loaded(None, None, (), 0, damaged=error.message)
        snapshot, slices = found.snapshots.get("snapshot"), found.snapshots.get("slices")
        start = start_of(snapshot) if after is None else after
        slices_start = start_of(slices) if after is None else after
        everything = await self._entries(session_id, found, min(start, slices_start))
        entries = tuple(e for e in everything if concerns(e, lane, start, slices_start))
        tail_bytes = sum(
            len(row.data)
            for row, count in zip(found.rows, found.counts, strict=True)
            if row.first_offset + count - 1 > start
        )
        return Loaded(snapshot, slices, entries, tail_bytes, found.last_at, found.checksum)

    async def _find(self, name: str, session_id: str, params: Params) -> LogRange:
        rows = await self._readers.ask(self._queries[name].bind(params))
        if not rows:
            raise unknown_session(session_id)
        return self._sort(rows)

    async def _entries(
        self, session_id: str, found: LogRange, after: int, *, large: bool = True
    ) -> list[Entry]:
        try:
            return await self._unpacker.entries(found.tenant, found.rows, after, large=large)
        except BlobMissing:
            # Large values are read after the log: the session may have been erased meanwhile.
            params = {"session_id": session_id, "before": 0, "limit": 1}
            await self._find("log_before", session_id, params)
            raise

    def _sort(self, rows: Rows) -> LogRange:
        [(_, end, _, tenant, last_at, checksum), *rest] = rows
        found = LogRange(tenant, end, last_at, (checksum or b"").hex(), {}, [], [])
        for kind, offset, count, lane, at, data in rest:
            if kind == "log":
                found.rows.append(LogRow(offset, lane, at, data))
                found.counts.append(count)
            else:
                check_snapshot(offset, end)
                found.snapshots[kind] = FoldSnapshot(offset, count, self._packer.expand(data))
        return found


def start_of(snapshot: FoldSnapshot | None) -> int:
    return snapshot.offset if snapshot else 0
