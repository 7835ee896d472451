"""Where the file is: a directory that exists, on a disk of this machine."""

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
