"""The directory of an execution: what is in it, and how it is changed so that a kill costs nothing.

A file is written beside its place, brought to the disk, and renamed; so each is there whole, as it
is or as it was. `request.json` decides: without it there is no execution, whatever else is left,
and files that are of another execution count as not there. Knows nothing of agents and sessions;
the loop is in `durable_loop.py`.
"""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from outlast.errors import ExecutionRunning, StoreCorrupt, StoreFull, StoreUnavailable
from outlast.log_context import get_logger
from outlast.milestones.execution import (
    CompletedExecution,
    DamagedFile,
    Execution,
    ExecutionProgress,
    SavedCheckpoint,
    packed,
    unpacked,
)
from outlast.stores.fork import guard
from outlast.stores.lock_file import identity_of, try_lock

log = get_logger("outlast.milestones")

Body = TypeVar("Body", bound=Struct)

REQUEST = "request.json"
CHECKPOINT = "checkpoint.json"
OLDER = "checkpoint.*.json"
PROGRESS = "progress.json"
COMPLETED = "completed"
LOCK = "lock"
FILES = (REQUEST, CHECKPOINT, PROGRESS, COMPLETED)
UNFINISHED = ".tmp"

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""On macOS `fsync` leaves what is written in the disk's cache."""


class ExecutionDirectory:
    """The files of one execution at a time. `keep` checkpoints are there at most."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self._keep = keep

    # The lock

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one who changes the directory, in all processes; create it if need be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = DirectoryLock(self.path / LOCK)
        except OSError as error:
            raise self._refusal("be locked", error) from error
        try:
            yield
        finally:
            lock.abandon()

    # The files

    def execution(self) -> Execution | None:
        """Return the execution that this directory is of, completed or not.

        Where its request is damaged, one of the other files says what it was.
        """
        try:
            return self._read(REQUEST, Execution)
        except DamagedFile as error:
            self._warn(REQUEST, error)
        copies = [
            self._whole(COMPLETED, CompletedExecution),
            self._whole(PROGRESS, ExecutionProgress),
        ]
        found = [*self._checkpoints(), *(copy for copy in copies if copy)]
        if not found:
            raise StoreCorrupt(
                f"{self.path / REQUEST} cannot be read, and no other file there says what was asked"
                " for: call execute() with the request again, or clear()"
            )
        return max((copy.execution for copy in found), key=lambda each: each.started_at)

    def completion(self, of: Execution) -> CompletedExecution | None:
        """Return how an execution ended, if it has."""
        found = self._whole(COMPLETED, CompletedExecution)
        return found if found and found.execution.id == of.id else None

    def progress(self, of: Execution) -> ExecutionProgress | None:
        """Return what was last written of the attempts and the usage of an execution."""
        found = self._whole(PROGRESS, ExecutionProgress)
        return found if found and found.execution.id == of.id else None

    def checkpoints(self, of: Execution) -> list[SavedCheckpoint]:
        """Return the checkpoints of an execution that can be read, the newest first."""
        return [each for each in self._checkpoints() if each.execution.id == of.id]

    def _checkpoints(self) -> list[SavedCheckpoint]:
        paths = [self.path / CHECKPOINT, *self.path.glob(OLDER)]
        found = (self._whole(path.name, SavedCheckpoint) for path in paths)
        return sorted((each for each in found if each), key=lambda each: -each.number)

    def _whole(self, name: str, kind: type[Body]) -> Body | None:
        """Return a file's content; None if there is none, or it is damaged, which is told."""
        try:
            return self._read(name, kind)
        except DamagedFile as error:
            self._warn(name, error)
            return None

    def _read(self, name: str, kind: type[Body]) -> Body | None:
        try:
            return unpacked((self.path / name).read_bytes(), kind)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EIO:
                raise DamagedFile(str(error)) from error
            raise self._refusal("be read", error) from error

    # Changes

    def begin(self, execution: Execution) -> None:
        """Have a new execution in place of the one before, whose files are removed."""
        self._write(REQUEST, execution)
        self._remove_files()

    def keep_progress(self, progress: ExecutionProgress) -> None:
        self._write(PROGRESS, progress)

    def keep_checkpoint(self, checkpoint: SavedCheckpoint) -> None:
        """Write the newest checkpoint, and leave the last few before it."""
        self._write(CHECKPOINT, checkpoint, self._make_older)

    def complete(self, completion: CompletedExecution) -> None:
        self._write(COMPLETED, completion)

    def remove_unfinished(self) -> None:
        """Remove what a process was writing when it was killed, where that can be."""
        for name in FILES:
            with suppress(OSError):
                (self.path / f"{name}{UNFINISHED}").unlink()

    def drop_checkpoints(self) -> None:
        """Remove all checkpoints, so that the execution begins anew."""
        for path in [self.path / CHECKPOINT, *self.path.glob(OLDER)]:
            self._remove(path)
        self._sync()

    def clear(self) -> None:
        """Remove the execution: its request first, without which the rest is nothing."""
        self._remove(self.path / REQUEST)
        self._sync()
        self._remove_files()

    def _remove_files(self) -> None:
        """Remove all that is not the request. Other people's files are left alone."""
        self.remove_unfinished()
        for path in [*(self.path / name for name in FILES[1:]), *self.path.glob(OLDER)]:
            self._remove(path)
        self._sync()

    def _make_older(self) -> None:
        """Give the checkpoints that are there the next higher places."""
        places = [self.path / CHECKPOINT]
        places += [self.path / f"checkpoint.{number}.json" for number in range(1, self._keep)]
        for newer, older in reversed([*pairwise(places)]):
            with suppress(FileNotFoundError):
                os.replace(newer, older)

    def _write(self, name: str, body: Struct, make_room: Callable[[], None] = lambda: None) -> None:
        path, unfinished = self.path / name, self.path / f"{name}{UNFINISHED}"
        try:
            write_whole(unfinished, packed(body))
            make_room()
            os.replace(unfinished, path)
            self._sync()
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()  # a full disk needs the room
            raise self._refusal("be written", error) from error

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise self._refusal("be changed", error) from error

    def _sync(self) -> None:
        """Bring the names of the files to the disk."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _refusal(self, what: str, error: OSError) -> StoreFull | StoreUnavailable:
        kind = StoreFull if error.errno in NO_ROOM else StoreUnavailable
        return kind(f"the directory {self.path} cannot {what}: {error}", path=str(self.path))

    def _warn(self, name: str, error: DamagedFile) -> None:
        reason = {"path": str(self.path / name), "reason": str(error)}
        log.warning("a file of an execution is damaged, and passed over", extra=reason)


class DirectoryLock:
    """A lock on a file that goes away with its process, and that a forked child does not keep."""

    def __init__(self, path: Path) -> None:
        # For reading only: a directory that became read-only can still be gone on with.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(self._descriptor, fcntl.LOCK_EX) or not self._is_at(path):
            self.abandon()
            raise ExecutionRunning(
                f"another execute() is at work in {path.parent}, here or in another process: wait"
                " for it to end, or give this one a directory of its own",
                path=str(path.parent),
            )
        guard(self)

    def _is_at(self, path: Path) -> bool:
        """Say whether the file that is locked is still the one which others would lock."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return False
        return identity_of(self._descriptor) == (str(found.st_dev), str(found.st_ino))

    def abandon(self) -> None:
        """Release the lock, or leave it to the process that this one was forked from."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file and bring it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
        if FULL_SYNC is not None:
            fcntl.fcntl(descriptor, FULL_SYNC)
    finally:
        os.close(descriptor)
