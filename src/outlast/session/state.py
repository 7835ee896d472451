"""A session's state as it is read from outside of its turns: queries and snapshots.

Changing it from there is in `mutation.py`, being told of changes in `observation.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic

from typing_extensions import TypeVar

from outlast.agents.state.slice_type import SliceType
from outlast.agents.state.snapshot import Snapshot, own_slices
from outlast.agents.state.stored_value import Slice
from outlast.core.instant import date_of
from outlast.core.name import MAIN
from outlast.core.record import Failure, StateChangeRefused
from outlast.core.slice import STATE_RECORDS, Slices, change_all, values_of
from outlast.log.snapshot import load_start
from outlast.store import DeliveryInfo, Loaded, SessionInfo, Store

T = TypeVar("T")

CHILDREN_AT_ONCE = 200
REFUSAL_IS_NEAR = 4
"""A refusal stands right before the record that settles its delivery."""


async def read_slices(store: Store, session_id: str) -> Slices:
    """Return the session's slices as they are in the log now."""
    return (await read_state(store, session_id))[0]


async def read_state(store: Store, session_id: str) -> tuple[Slices, int]:
    """Return the session's slices, and the offset of the last record that they are made of."""

    async def load(after: int | None) -> Loaded:
        return await store.log.load(session_id, MAIN, after)

    found = await load_start(load, session_id, MAIN)
    later = [entry for entry in found.loaded.entries if entry.offset > found.slices_offset]
    changed = (entry.offset for entry in later if isinstance(entry.record, STATE_RECORDS))
    return change_all(found.slices, later), max(changed, default=found.slices_offset)


async def take_snapshot(store: Store, info: SessionInfo) -> Snapshot:
    """Return all that a session keeps, and what it is known by."""
    slices, offset = await read_state(store, info.session_id)
    return Snapshot(
        session_id=info.session_id,
        created_at=info.created_at,
        taken_at=date_of(store.clock.date()),
        offset=offset,
        tags=info.tags,
        parent=info.parent or None,
        children=tuple([child async for child in children_of(store, info)]),
        slices=own_slices(slices),
    )


async def children_of(store: Store, info: SessionInfo) -> AsyncIterator[str]:
    """Yield the sessions that a session has started, oldest first."""
    found: list[str] = []
    before = None
    while page := await store.listing.sessions(
        tenant=info.tenant, parent=info.session_id, before=before, limit=CHILDREN_AT_ONCE
    ):
        found += [child.session_id for child in page]
        before = found[-1]
    for child in reversed(found):
        yield child


async def read_refusal(store: Store, change: DeliveryInfo) -> Failure | None:
    """Return why a change of state was refused; None: because the session was over."""
    page = await store.log.read_back(change.session_id, change.settled_offset, REFUSAL_IS_NEAR)
    for entry in reversed(page.entries):
        record = entry.record
        if isinstance(record, StateChangeRefused) and record.delivery_id == change.delivery_id:
            return record.error
    return None


class SliceQuery(Generic[T]):
    """The state that a session keeps of one type, read anew at each call."""

    def __init__(self, kept_as: SliceType[T], read: Callable[[], Awaitable[Slices]]) -> None:
        self._type = kept_as
        self._slices = read

    async def _read(self) -> Slice[T]:
        return Slice(values_of(await self._slices(), self._type.name), self._type)

    async def all(self) -> list[T]:
        """Return all values, oldest first."""
        return (await self._read()).all()

    async def latest(self) -> T | None:
        """Return the value that was kept last, if there is one."""
        return (await self._read()).latest()

    async def where(self, predicate: Callable[[T], bool]) -> list[T]:
        """Return the values for which the predicate is true."""
        return (await self._read()).where(predicate)
