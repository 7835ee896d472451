"""A file of facts outside the store: one line each, appended for good.

It knows nothing of Outlast, and so can bear witness: a line that was written stays, whatever
becomes of the process that wrote it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct


class ModelAsked(Struct, frozen=True):
    """A model was asked, and will send its bill."""

    at: int
    worker: str
    call_id: str
    attempt: int


class DemoEffect(Struct, frozen=True):
    """Something was asked of the world; `done` unless it knew the key and had done it before."""

    at: int
    worker: str
    what: str
    subject: str
    key: str
    done: bool = True


Line = TypeVar("Line", bound=Struct)


class EffectFile(Generic[Line]):
    """An append-only file of JSON lines of one kind, shared by processes."""

    def __init__(self, path: Path, kind: type[Line]) -> None:
        self._path = path
        self._kind = kind

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other writer out, in this process and the others."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def write(self, line: Line) -> None:
        """Append a line; it survives power loss when this returns."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, 0o644)
        try:
            os.write(descriptor, msgspec.json.encode(line) + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lines(self) -> list[Line]:
        """Return all lines, oldest first."""
        if not self._path.exists():
            return []
        return [
            msgspec.json.decode(line, type=self._kind)
            for line in self._path.read_bytes().splitlines()
        ]
