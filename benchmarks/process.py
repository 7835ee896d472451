"""Worker processes that a benchmark starts, watches and kills."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.work import STEPS

ROOT = Path(__file__).parents[1]


class WorkerProcess:
    """A process of `benchmarks.worker`. Entered, it has imported all; left, it is killed.

    With `kill_at` it dies by SIGKILL at that step of a stepper. `lane_cache` counts MiB.
    """

    def __init__(
        self,
        url: str,
        *,
        steps: int = STEPS,
        concurrency: int = 200,
        kill_at: int = 0,
        lane_cache: float = 64.0,
    ) -> None:
        numbers = map(str, (steps, concurrency, kill_at, int(lane_cache * 2**20)))
        self._process = subprocess.Popen(  # noqa: S603 - ourselves
            [sys.executable, "-m", "benchmarks.worker", url, *numbers],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def open(self) -> None:
        """Have it open the app, and wait until it is open."""
        self.begin_to_open()
        self._hear("open")

    def begin_to_open(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("open\n")
        self._process.stdin.flush()

    def see_die(self) -> float:
        """Wait until it has killed itself; return when, in seconds since the epoch."""
        _, at = self._hear("killed").split()
        return float(at)

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        command = ["ps", "-o", "rss=", "-p", str(self._process.pid)]
        found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        return int(found.stdout) / 1024

    @property
    def descriptors(self) -> int:
        """How many files and sockets it has open; 0 where that cannot be seen."""
        found = Path(f"/proc/{self._process.pid}/fd")
        return len(list(found.iterdir())) if found.exists() else 0

    def _hear(self, word: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith(word), f"the worker should say {word!r} and said {line!r}"
        return line

    def __enter__(self) -> Self:
        self._hear("imported")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
