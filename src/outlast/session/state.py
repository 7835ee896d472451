"""A session's state as it is read and changed from outside of its turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from typing_extensions import TypeVar

from outlast.agents.state.slice_type import SliceType
from outlast.agents.state.stored_value import Slice
from outlast.core.name import MAIN
from outlast.core.slice import Slices, change_all, values_of
from outlast.log.snapshot import load_start
from outlast.store import Loaded, Store

T = TypeVar("T")


async def read_slices(store: Store, session_id: str) -> Slices:
    """Return the session's slices as they are in the log now."""

    async def load(after: int | None) -> Loaded:
        return await store.log.load(session_id, MAIN, after)

    found = await load_start(load, session_id, MAIN)
    later = (entry for entry in found.loaded.entries if entry.offset > found.slices_offset)
    return change_all(found.slices, later)


class SliceQuery(Generic[T]):
    """What a session keeps of a type, read anew at each question."""

    def __init__(self, store: Store, session_id: str, kept_as: SliceType[T]) -> None:
        self._store = store
        self._session_id = session_id
        self._type = kept_as

    async def _read(self) -> Slice[T]:
        slices = await read_slices(self._store, self._session_id)
        return Slice(values_of(slices, self._type.name), self._type)

    async def all(self) -> list[T]:
        """Return all values, oldest first."""
        return (await self._read()).all()

    async def latest(self) -> T | None:
        """Return the value that was kept last, if there is one."""
        return (await self._read()).latest()

    async def where(self, predicate: Callable[[T], bool]) -> list[T]:
        """Return the values for which the predicate is true."""
        return (await self._read()).where(predicate)
