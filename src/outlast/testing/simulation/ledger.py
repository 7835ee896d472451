"""A table of a user's own in the database of the log: tools' transactions change both.

The checks compare its rows with the outcomes in the log (`check_call.py`).
"""

import re
from importlib.resources import files
from typing import Any

from outlast.clock import Clock
from outlast.stores.sqlite import MemoryStore

Row = tuple[Any, ...]


def read_statements() -> dict[str, str]:
    text = (files(__package__) / "ledger.sql").read_text("utf-8")
    return dict(re.findall(r"-- name: (\w+)\n(.+?);", text, re.DOTALL))


SQL = read_statements()


class LedgerStore(MemoryStore):
    """A memory store with the table `bookings` beside the log."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.write_outside_transaction(lambda db: db.raw.execute(SQL["create"]))

    def bookings(self) -> list[Row]:
        """Return what transactions have left."""
        return self.write_outside_transaction(lambda db: db.raw.execute(SQL["list"]).fetchall())
