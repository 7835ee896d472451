"""Observers of a slice: told in this process, while it runs, how the slice has changed.

Nothing of it is recorded: an observer that was not there is not told later. What has to be told at
least once is a hook (`Outlast.hook`) or a webhook.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from outlast.agents.state.slice_type import SliceType
from outlast.agents.state.stored_value import load
from outlast.core.name import MAIN
from outlast.core.record import SliceValue
from outlast.core.slice import change_all, values_of
from outlast.errors import StoreUnavailable, UnknownSession
from outlast.log.reader import Wakeups
from outlast.log_context import get_logger
from outlast.session.state import read_state
from outlast.store import Store

T = TypeVar("T")

log = get_logger("outlast.session")

Observer = Callable[[Sequence[T], Sequence[T]], Awaitable[None] | None]
"""Takes the values of a slice before and after a change."""


class Observation(Generic[T]):
    """Calls a function when one slice changes, until it is closed.

    Changes that follow closely on one another may be combined into one call.
    """

    def __init__(
        self, store: Store, session_id: str, kept_as: SliceType[T], function: Observer[T]
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._type = kept_as
        self._function = function
        self._has_begun = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._observe())

    async def __aenter__(self) -> Self:
        await self._has_begun.wait()  # from here on no change is missed
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop calling the function."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _observe(self) -> None:
        with Wakeups(self._store, self._session_id) as wakeups:
            # While it listens already: what changes from here on sets the wakeup.
            slices, seen = await read_state(self._store, self._session_id)
            before = values_of(slices, self._type.name)
            self._has_begun.set()
            while True:
                await wakeups.wait()
                wakeups.clear()
                try:
                    loaded = await self._store.log.load(self._session_id, MAIN, seen)
                except StoreUnavailable:
                    continue  # the next look finds what was missed
                except UnknownSession:
                    return  # it was erased
                if not loaded.entries:
                    continue
                slices, seen = change_all(slices, loaded.entries), loaded.entries[-1].offset
                after = values_of(slices, self._type.name)
                if after != before:
                    before = await self._tell(before, after)

    async def _tell(
        self, before: tuple[SliceValue, ...], after: tuple[SliceValue, ...]
    ) -> tuple[SliceValue, ...]:
        try:
            told: Any = self._function(self._loaded(before), self._loaded(after))
            if inspect.isawaitable(told):
                await told
        except Exception:
            extra = {"session": self._session_id, "slice": self._type.name}
            log.exception(
                "an observer of a slice failed; it is told of the next change", extra=extra
            )
        return after

    def _loaded(self, values: Sequence[SliceValue]) -> list[T]:
        return [load(value, self._type) for value in values]
