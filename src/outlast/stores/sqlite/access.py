"""The connections of a store as its topics use them: to write, to read, to listen.

`file.py` does it for a file, `memory.py` for a connection in memory. The topics know what to write
and read: `log.py`, `work.py`, `listing.py`, `limit.py`, `outbox.py`, `document.py`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from outlast.clock import Clock
from outlast.store import Transaction
from outlast.stores.listener import Heard
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.writer import Do, Work

T = TypeVar("T")


class Access(Protocol):
    """A way to run functions in transactions: on a file, or in memory (`memory.py`)."""

    @property
    def clock(self) -> Clock: ...

    async def write(self, *works: Work, size: int = 0) -> list[Any]:
        """Run functions in one transaction, maybe with those of others; return their results."""
        ...

    async def write_all(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> list[Any]:
        """Have items done by one function, in one transaction with others of their kind.

        They write about `size` bytes; `session` is named where they are all one session's.
        """
        ...

    async def read(self, question: Callable[[Database], T]) -> T:
        """Run a function that only reads."""
        ...

    def transaction(self, limit: float) -> AbstractAsyncContextManager[Transaction]:
        """Open a transaction for a tool; see `LogStore.transaction`."""
        ...

    def listen(self, heard: Heard, session_id: str) -> Callable[[], None]:
        """Call a listener after writes; see `WorkStore.listen`."""
        ...

    async def wipe(self) -> None:
        """Remove what was erased from the files beside the database too."""
        ...
