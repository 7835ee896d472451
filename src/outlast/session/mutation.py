"""Changes of a session's state from outside of its turns: asked for here, made by its owner.

Only the owner of a lane writes to it, so a change is a delivery to `main`. It is there for good
when the call returns, and is made between two steps, or at once where nothing runs; the receipt
tells what became of it. The same in a tool is `agents/state/mutation.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import TypeVar

from outlast.agents.state.change_request import (
    RESET,
    append_request,
    dispatch_request,
    rollback_request,
    seed_request,
)
from outlast.agents.state.reducer import Reducer
from outlast.agents.state.slice_type import SliceType, register
from outlast.agents.state.snapshot import Snapshot
from outlast.core.record import StateChangeRequested

if TYPE_CHECKING:
    from outlast.session.handle import Receipt

T = TypeVar("T")
E = TypeVar("E")

SendChange = Callable[[StateChangeRequested, str | None], Awaitable["Receipt[Any]"]]
"""Brings a change to its session; the same dispatch id again is the same change."""


class SliceChanges(Generic[T]):
    """Changes to one slice from outside of tools.

    A receipt's `result()` waits until the change is made.
    """

    def __init__(self, kept_as: SliceType[T], send: SendChange) -> None:
        self._type = kept_as
        self._send = send

    async def seed(self, *values: T, dispatch_id: str | None = None) -> Receipt[Any]:
        """Replace all values by these."""
        return await self._send(seed_request(self._type, values), dispatch_id)

    async def clear(self, *, dispatch_id: str | None = None) -> Receipt[Any]:
        """Remove all values."""
        return await self._send(seed_request(self._type, ()), dispatch_id)

    async def append(self, value: T, *, dispatch_id: str | None = None) -> Receipt[Any]:
        """Add a value after the others."""
        return await self._send(append_request(self._type, value), dispatch_id)

    async def dispatch(self, event: object, *, dispatch_id: str | None = None) -> Receipt[Any]:
        """Change the slice by its reducer for the event, which the worker has to know."""
        return await self._send(dispatch_request(event, self._type), dispatch_id)

    def register(self, event: type[E], function: Reducer[T, E]) -> None:
        """Add a reducer for an event in this process, as `outlast.state.reducer` does."""
        register(self._type.of, event, function)


class SessionChanges:
    """Changes to all of a session's state from outside of tools."""

    def __init__(self, send: SendChange) -> None:
        self._send = send

    async def dispatch(self, event: object, *, dispatch_id: str | None = None) -> Receipt[Any]:
        """Change every slice that has a reducer for the event, in the worker."""
        return await self._send(dispatch_request(event), dispatch_id)

    async def reset(self, *, dispatch_id: str | None = None) -> Receipt[Any]:
        """Remove all values except logs. It is refused while another lane has an open turn."""
        return await self._send(RESET, dispatch_id)

    async def rollback(self, snapshot: Snapshot, *, dispatch_id: str | None = None) -> Receipt[Any]:
        """Give all slices the values that a snapshot has, except logs.

        It is refused while another lane has an open turn.
        """
        return await self._send(rollback_request(snapshot), dispatch_id)
