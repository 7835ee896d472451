"""What really happened, kept outside the store: a file that every process appends to.

A mark is one write to a file opened for appending, so none is torn or lost when its writer is
killed. Instants are those of the machine's monotonic clock, the same in all processes.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from outlast.log_context import known

PLACE = ("session", "lane", "worker", "fence")


class Mark(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a process did.

    `what`: begun and ended (a call's function, or a model that was asked, which has no `tool`),
    stopped (a call that was cancelled), stepped (a step inside a call), woke (after a sleep of
    `key` milliseconds), shipped (an effect outside), claimed (a lane, under a fence), wrote (a
    commit to a lane, from `offset` on), or lost (an error nobody foresaw).
    """

    what: str
    at: float
    pid: int
    session: str = ""
    lane: str = ""
    worker: str = ""
    fence: int = 0
    call: str = ""
    attempt: int = 0
    tool: str = ""
    key: str = ""
    offset: int = 0


class Ledger:
    """The file. Any number of processes may write to it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def mark(self, what: str, **facts: Any) -> None:
        """Write down what the current process does; where in a session it stands is known."""
        here: dict[str, Any] = {name: known()[name] for name in PLACE if name in known()}
        mark = Mark(what=what, at=time.monotonic(), pid=os.getpid(), **{**here, **facts})
        os.write(self._descriptor, msgspec.json.encode(mark) + b"\n")

    def read(self) -> list[Mark]:
        """Return all marks in the order in which they were written."""
        whole, _, _ = self.path.read_bytes().rpartition(b"\n")
        return [msgspec.json.decode(line, type=Mark) for line in whole.splitlines()]

    def close(self) -> None:
        os.close(self._descriptor)
