"""Where tests keep their files: in memory if there is room, since nobody cuts the power here.

Every commit of a SQLite store waits for the disk, which on a busy machine takes longer than the
test. What a process reads after a kill is the same in memory: only a power cut tells the two apart.
`TMPDIR` names another place.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a directory of its own there
ROOM = 4 * 1024**3
"""Containers often have 64 MiB there; a whole run of the tests leaves some hundred."""


def use_memory_directory() -> None:
    """Have this process and those that it starts make their temporary files in memory."""
    if "TMPDIR" not in os.environ and has_room(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it was chosen at the first use; choose again


def has_room(directory: Path) -> bool:
    """Tell whether much can be written here, and programs run."""
    if not os.access(directory, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC
