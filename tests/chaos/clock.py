"""The wall clock of a run's workers, which is set while they work.

On PostgreSQL the database's is another one. On SQLite it is the store's, so it is set for all
processes of the run.
"""

from __future__ import annotations

from pathlib import Path

from outlast.clock import Clock


class SetClock(Clock):
    """This machine's clock, ahead by the milliseconds that a file beside the ledger says."""

    def __init__(self, ledger: Path) -> None:
        self._path = ledger.with_name("clock")

    def now(self) -> int:
        ahead = self._path.read_text() if self._path.exists() else ""
        return super().now() + int(ahead or 0)

    def set(self, ahead: int) -> None:
        """Set it for all workers at once."""
        new = self._path.with_suffix(".new")
        new.write_text(str(ahead))
        new.replace(self._path)


def users_clock(url: str, ledger: Path) -> Clock:
    """Return the clock of those who only send and read: another machine's, unless it is a file."""
    return Clock() if url.startswith("postgres") else SetClock(ledger)
