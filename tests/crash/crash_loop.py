"""What the processes do in which a `DurableLoop` is killed at one of its writes.

The functions of `os` by which it changes its directory are counted. At the chosen one the process
kills itself, before it or in the middle of it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from loop_scene import loop_in

Say = Callable[[str], None]
OUTPUT = 2
"""The last descriptor that is not a file's of the loop."""


class DeadlyOs:
    """Wraps what changes files, and kills the process at the change number `at`; 0 only counts."""

    def __init__(self, at: int, *, halfway: bool) -> None:
        self.changes = 0
        self.writes: list[int] = []
        self._at = at
        self._halfway = halfway
        self._write, self._open = os.write, os.open
        for name in ("mkdir", "replace", "unlink"):
            setattr(os, name, self._deadly(getattr(os, name)))
        # Nothing loses power here: only the order of things counts.
        os.fsync = self._deadly(lambda _: None)
        os.write, os.open = self._writing, self._opening

    def _count(self) -> bool:
        self.changes += 1
        return self.changes == self._at

    def _die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _deadly(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if self._count():
                self._die()
            return change(*args, **options)

        return counted

    def _opening(self, path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_CREAT and self._count():
            self._die()
        return self._open(path, flags, *args, **options)

    def _writing(self, descriptor: int, data: Any) -> int:
        if descriptor > OUTPUT and len(data) > len("step 1\n"):
            if self._count():
                if self._halfway:
                    self._write(descriptor, bytes(data)[: len(data) // 2])
                self._die()
            self.writes.append(self.changes)
        return self._write(descriptor, data)


async def execute(say: Say, directory: str, at: int, halfway: bool, request: str = "go") -> None:
    """Go on with the execution of a directory, or begin it, and say what it came to."""
    loop = loop_in(Path(directory))
    deadly = DeadlyOs(at, halfway=halfway)
    result = await loop.execute(request)
    say(f"{result.output} after {result.attempts} attempts")
    say(f"changes {deadly.changes} {' '.join(map(str, deadly.writes))}")


async def clear(say: Say, directory: str, at: int, halfway: bool) -> None:
    """Give up the execution of a directory."""
    loop = loop_in(Path(directory))
    deadly = DeadlyOs(at, halfway=halfway)
    loop.clear()
    say(f"changes {deadly.changes}")


JOBS = {"execute": execute, "clear": clear}
