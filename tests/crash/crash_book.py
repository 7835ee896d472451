"""The outside world of the crash tests: a file that tools and models append to.

A line is one write to a file opened for appending, so none is torn or lost when its
writer is killed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from outlast import Context


class Start(NamedTuple):
    """A call that really began: the function was entered, or the model was asked."""

    agent: str
    call_id: str
    attempt: int


class Book:
    """What happened outside, in order, whoever did it."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def start(self, agent: str, call_id: str, attempt: int) -> None:
        self._write(start=[agent, call_id, attempt])

    def begin(self, ctx: Context[Any]) -> None:
        """Note that a tool was entered."""
        self.start(ctx.session.agent, ctx.call_id, ctx.attempt)

    def effect(self, what: str) -> None:
        self._write(effect=what)

    def _write(self, **line: Any) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)

    def starts(self) -> list[Start]:
        return [Start(*line["start"]) for line in self._read() if "start" in line]

    def effects(self) -> list[str]:
        return [line["effect"] for line in self._read() if "effect" in line]

    def _read(self) -> list[dict[str, Any]]:
        path = Path(self.path)
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
