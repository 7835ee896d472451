"""What a workload has to know of a kind of database, so that it need not know which it is.

A place makes databases. A database says how Outlast reaches it, how large it is, and gives
the floor: the same work on it by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from benchmarks.anatomy import Anatomy
from benchmarks.stopwatch import Target

Row = tuple[int, bytes]


class Floor(Protocol):
    """A log by hand, of one table and one connection, as durable as Outlast's."""

    def add(self, row: Row) -> None:
        """Make one durable commit of one row."""
        ...

    def add_group(self, rows: Sequence[Row]) -> None:
        """Make one durable commit of many rows."""
        ...


class Database(Protocol):
    """One database, for one run of one workload."""

    @property
    def url(self) -> str: ...

    @property
    def size(self) -> int:
        """Bytes on disk."""
        ...

    def vitals(self) -> dict[str, float]:
        """What would show that work piles up in it, by name."""
        ...

    def floor(self) -> AbstractContextManager[Floor]: ...


class Place(Protocol):
    """A kind of database that is there for a whole run of the benchmarks.

    `title` tells its results from those of the others, `transaction` is what its store calls
    once for each group of commits.
    """

    @property
    def store(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def anatomy(self) -> Anatomy: ...

    @property
    def transaction(self) -> Target: ...

    def database(self, name: str) -> Database:
        """Return a new database; one that had this name is removed."""
        ...

    def clear(self) -> None:
        """Remove all databases."""
        ...

    def wait_until_deaths_count(self) -> None:
        """Wait until a worker's death would be believed."""
        ...
