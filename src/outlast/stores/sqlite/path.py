"""Checks the place of the file: a directory that exists, a local disk, and still the same file.

Owns what is looked at before the file is opened, and the watch over it while it is open. Never
opens the database file itself: closing it would drop SQLite's locks (see `database.py`).
"""

import os
import re
import struct
from pathlib import Path

from outlast.errors import StoreUnavailable, UnsupportedStore

# On these, locks do not exclude or memory is not shared between machines: two processes
# would write over one another, and the log would be damaged.
NETWORK = set(
    "nfs nfs4 cifs smb2 smb3 smbfs ncpfs afs coda ceph glusterfs lustre gpfs beegfs ocfs2 gfs2 "
    "fuse.sshfs fuse.glusterfs fuse.ceph fuse.cephfs fuse.s3fs fuse.gcsfuse fuse.rclone "
    "fuse.blobfuse fuse.blobfuse2 fuse.mount-s3 fuse.juicefs fuse.davfs davfs".split()
)
MOUNTS = Path("/proc/self/mounts")
INDEX = struct.Struct("=14x H 4x I")
"""The size of a page and the number of pages, at the head of the index of a log."""


class FileReplaced(StoreUnavailable):
    """The file that a process works on is not at its path any more."""


class FileWatch:
    """Notices that the database's file, or the log beside it, was deleted or replaced.

    A connection keeps the file that it has opened, wherever its name has gone: all that is written
    would be accepted, and be in no file that anybody finds. A file that another one was copied over
    keeps its name and its number; it is told by having become shorter while the database has not,
    as it does by a `VACUUM`. Any thread may use it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._log_path = log_path(path)
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        self._longest = 0

    def note(self) -> None:
        """Remember which files these are; connections to them are open."""
        file = identity(self._path)
        # A connection of another file begins to measure anew; the same one keeps its longest.
        if file != self._file:
            self._longest = 0
        self._file, self._log = file, identity(log_path(self._path))

    def check(self) -> int | None:
        """Raise FileReplaced unless the file is the one that was opened; return its length."""
        return self._check(self._path, self._file)

    def check_with_log(self) -> None:
        """Raise FileReplaced also if the log beside it is not the one that was opened."""
        size = self._check(self._path, self._file)
        if size is not None:
            # Written over in its place it keeps its inode; its length gives it away.
            if size < self._longest <= length_by_index(self._path):
                raise self._replaced(self._path)
            self._longest = size
        log = self._log_path
        if self._log is None:  # SQLite makes it with the first write
            self._log = identity(log)
        else:
            self._check(log, self._log)

    def _check(self, path: Path | str, known: tuple[int, int] | None) -> int | None:
        """Raise FileReplaced if there is certainly no such file any more at a path."""
        try:
            found = os.stat(path)
        except FileNotFoundError:
            raise self._replaced(path) from None
        except OSError:  # the disk is away, or may not be looked at: SQLite will say so
            return None
        if (found.st_dev, found.st_ino) != known:
            raise self._replaced(path)
        return found.st_size

    def _replaced(self, path: Path | str) -> FileReplaced:
        return FileReplaced(
            f"{path} was deleted, moved away or replaced while this process works on it; nothing"
            " more is accepted: put the file back where it was, or restart this process to work on"
            " what is there now",
            path=str(path),
        )


def log_path(path: Path) -> str:
    return f"{path}-wal"


def length_by_index(path: Path) -> int:
    """Return how many bytes the database has, as the index of its log says; 0 if it does not.

    The index tells it to all processes that have the file open, whatever became of the file; its
    layout is in SQLite's own documentation of the format.
    """
    try:
        with open(f"{path}-shm", "rb") as index:
            page_size, pages = INDEX.unpack(index.read(INDEX.size))
    except (OSError, struct.error):
        return 0
    return int(pages) * (page_size if page_size > 1 else 65_536)


def identity(path: Path | str) -> tuple[int, int] | None:
    """Return what tells a file from every other, or None if nothing can be known of it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_place(path: Path) -> None:
    """Refuse a place where a database cannot be kept; nothing is touched."""
    if not path.parent.is_dir():
        raise StoreUnavailable(
            f"the directory {path.parent} does not exist; create it, or name another place"
            " for the database",
            path=str(path),
        )
    if path.is_dir():
        raise UnsupportedStore(f"{path} is a directory; name a file in it", path=str(path))
    for needed in (path.parent, *([path] if path.exists() else [])):
        # SQLite opens what it may only read without a word, and fails at the first write.
        if not os.access(needed, os.W_OK):
            raise StoreUnavailable(
                f"{needed} is read-only for this user; let it write to the database's file and to"
                " its directory, where SQLite keeps a log beside the file",
                path=str(path),
            )
    kind = file_system(read_mounts(), os.path.realpath(path.parent))
    if kind in NETWORK:
        raise UnsupportedStore(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold;"
            " put it on a local disk",
            path=str(path),
            file_system=kind,
        )


def read_mounts() -> str:
    """Return the table of mounts, or nothing where the system has none to read."""
    try:
        return MOUNTS.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def file_system(mounts: str, path: str) -> str:
    """Return the kind of file system that a path is on, or nothing if the table is silent."""
    longest, found = -1, ""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = unescape(fields[1])
        if is_below(path, point) and len(point) >= longest:
            longest, found = len(point), fields[2]
    return found


def unescape(field: str) -> str:
    """Undo the table's escapes: a space is written as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal.group(1), 8)), field)


def is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")
