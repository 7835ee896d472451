"""A clock that all processes of a scene share, and that a test can have jump."""

from __future__ import annotations

from pathlib import Path

from outlast.clock import Clock


class SharedClock(Clock):
    """This machine's clock, ahead by the milliseconds that a file says. Spans are always true."""

    is_shared = True

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def now(self) -> int:
        ahead = self._path.read_text() if self._path.exists() else ""
        return super().now() + int(ahead or 0)

    def jump_to(self, instant: int) -> None:
        """Make it that instant, later or earlier, for everybody at once."""
        new = self._path.with_suffix(".new")
        new.write_text(str(instant - super().now()))
        new.replace(self._path)
