"""The topic `outbox`: cursors over sessions' logs, from which events are delivered outside.

A commit with `tells` makes a session's cursors due; a dispatcher takes those that are due, delivers
events and settles them. Knows neither what a delivery is nor to whom it goes.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct


class OutboxCursor(Struct, frozen=True, gc=False, kw_only=True):
    """A cursor over a session's log, from which its events are told to a receiver outside.

    All up to `position` was told or given up. `told` counts how often there was something new;
    `tries` are the failed ones since it last moved, and `error` is the last of them.
    `held` counts how often it was given out: who holds an older one settles nothing.
    `secret` signs what is posted to `url`, if the caller brought one; it is in no log.
    """

    session_id: str
    tenant: str
    agent: str
    name: str
    url: str
    secret: str = ""
    events: tuple[str, ...]
    position: int = 0
    told: int = 0
    held: int = 0
    due_at: int | None = None
    tries: int = 0
    error: str = ""

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Show all but the secret; `repr` goes by this, too."""
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name != "secret"]

    def __repr__(self) -> str:
        shown = (f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"OutboxCursor({', '.join(shown)})"


class DeadLetter(Struct, frozen=True, gc=False, kw_only=True):
    """An event that could not be delivered in time, and why."""

    session_id: str
    tenant: str
    cursor_name: str
    offset: int
    type: str
    error: str
    at: int


class OutboxStore(Protocol):
    """The outbox cursors of all sessions."""

    async def take(self, limit: int, hold: int) -> Sequence[OutboxCursor]:
        """Take cursors that are due and that no dispatcher holds, the longest due first.

        No other dispatcher gets them for `hold` milliseconds, unless they are settled before.
        """
        ...

    async def settle(
        self,
        cursor: OutboxCursor,
        *,
        position: int,
        again_at: int | None,
        tries: int = 0,
        error: str = "",
        dead: Sequence[DeadLetter] = (),
    ) -> bool:
        """Move a cursor to `position` and give it back, with the events that failed for good.

        It is due again at `again_at`; None: when there is something new, which may have come
        since it was taken. Nothing happens if another dispatcher has taken it meanwhile; returns
        whether it was still held by the caller.
        """
        ...

    async def cursors(
        self,
        session_id: str | None = None,
        *,
        tenant: str | None = None,
        failing_only: bool = False,
        limit: int = 100,
    ) -> Sequence[OutboxCursor]:
        """List cursors, those of the newest session first, by name within a session."""
        ...

    async def next_due_at(self) -> int | None:
        """Return when the next cursor is due, held or not; None if there is nothing to deliver."""
        ...

    async def dead_letters(
        self, *, tenant: str | None = None, session_id: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        """List the events that could not be delivered, newest first."""
        ...
