"""Files outside the store in which the model and the services note what they were asked.

They know nothing of Outlast, so they can be compared with its log: a line that was written stays,
whatever becomes of the process that wrote it.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct


class ModelAsked(Struct, frozen=True):
    """A model call, which is paid for whether or not its answer is recorded."""

    at: int
    worker: str
    call_id: str
    attempt: int


class DemoEffect(Struct, frozen=True):
    """A request to a service; `done` is False where the service knew the key already."""

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


class DemoFiles:
    """The files of one run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.store = self.directory / "outlast.db"
        self.worker_log = self.directory / "workers.log"
        self.asked = EffectFile(self.directory / "model.jsonl", ModelAsked)
        self.effects = EffectFile(self.directory / "world.jsonl", DemoEffect)

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.store}"
