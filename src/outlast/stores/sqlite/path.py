"""Checks the place of the file: a directory that exists, a local disk, and still the same file."""

import os
import re
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


class FileReplaced(StoreUnavailable):
    """The file that a process works on is not at its path any more."""


class FileWatch:
    """Notices that the database's file, or the log beside it, was deleted or replaced.

    A connection keeps the file that it has opened, wherever its name has gone: all that is written
    would be accepted, and be in no file that anybody finds. Any thread may use it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None

    def note(self) -> None:
        """Remember which files these are; connections to them are open."""
        self._file, self._log = identity(self._path), identity(log_path(self._path))

    def check(self) -> None:
        """Raise FileReplaced unless the file is the one that was opened."""
        if is_another(self._path, self._file):
            raise self._replaced(self._path)

    def check_with_log(self) -> None:
        """Raise FileReplaced also if the log beside it is not the one that was opened."""
        self.check()
        log = log_path(self._path)
        if self._log is None:  # SQLite makes it with the first write
            self._log = identity(log)
        elif is_another(log, self._log):
            raise self._replaced(log)

    def _replaced(self, path: Path | str) -> FileReplaced:
        return FileReplaced(
            f"{path} was deleted, moved away or replaced while this process works on it; nothing"
            " more is accepted: put the file back where it was, or restart this process to work on"
            " what is there now",
            path=str(path),
        )


def log_path(path: Path) -> str:
    return f"{path}-wal"


def identity(path: Path | str) -> tuple[int, int] | None:
    """Return what tells a file from every other, or None if nothing can be known of it."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_another(path: Path | str, known: tuple[int, int] | None) -> bool:
    """Whether there is certainly no such file any more at a path."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:  # the disk is away, or may not be looked at: SQLite will say so
        return False
    return (found.st_dev, found.st_ino) != known


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
