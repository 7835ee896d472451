"""Reads the files of a skill's folder, whatever somebody has put there.

Owns the bounds: nothing outside of the folder is read, nothing that is no plain file, nothing that
is too large or no UTF-8. What the files mean is in `skill.py`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG

from msgspec import Struct

from outlast.errors import InvalidSkill

MOST_BYTES = 256 * 1024
"""The largest file that is given to a model."""
MOST_FILES = 1_000
"""So many files, and folders, a skill may have."""
ALLOWED_CONTROLS = {"\t", "\n"}
HIDDEN = re.compile(
    "[\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e00ff]"
    "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2}"
)
"""Characters that a model reads and whoever looks through a skill does not see, or that turn the
words around them about. Joiners and variants stay: scripts and emoji are written with them. But one
variant follows a character, never another: a row of them spells hidden bytes."""


class SkillFile(Struct, frozen=True, order=True):
    """A file beside a skill's SKILL.md: its path from the skill's folder, and its size."""

    path: str
    size: int


def read_text(folder: Path, path: str) -> tuple[str, bytes]:
    """Return a file's text, with plain line ends, and its bytes. Raises InvalidSkill."""
    data = read_bytes(folder, path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise invalid(
            folder, f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8"
        ) from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        if line.isascii() and line.isprintable():
            continue
        if found := next(filter(is_control, line), ""):
            raise invalid(
                folder, f"{path} has the control character {found!r} in line {number}: take it out"
            )
        if hidden := HIDDEN.search(line):
            raise invalid(
                folder,
                f"{path} has the character {hidden[0][0]!a} in line {number}, which a model reads"
                " and people do not see: take it out",
            )
    return text, data


def is_control(character: str) -> bool:
    return (character < " " or character == "\x7f") and character not in ALLOWED_CONTROLS


def read_bytes(folder: Path, path: str) -> bytes:
    target = inside(folder, path)
    # Not blocking, or a named pipe without a writer would hold up the worker.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(target, flags)
    except OSError as error:
        raise invalid(folder, f"{path} cannot be read: {error.strerror}") from None
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise invalid(folder, f"{path} is no plain file")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(data) > MOST_BYTES:
        raise invalid(
            folder,
            f"{path} has more than {MOST_BYTES // 1024} KiB, the most that a model is given: split"
            " it into several files",
        )
    return data


def inside(folder: Path, path: str) -> str:
    """Return where a file of a folder really is, if that is within the folder."""
    parts = path.split("/")
    if not path or "\0" in path or "\\" in path or any(p in ("", ".", "..") for p in parts):
        raise invalid(folder, f"{path!r} is no path of a file in it: write it as references/x.md")
    root = os.path.realpath(folder)
    target = os.path.realpath(os.path.join(root, *parts))
    if os.path.commonpath([root, target]) != root:
        raise invalid(folder, f"{path} leads out of it: copy the file into the folder")
    return target


def files_of(folder: Path, root: Path | None = None, depth: int = 0) -> Iterator[SkillFile]:
    """Yield the plain files of a folder and of those in it; links to folders are not followed."""
    root = root or folder
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise invalid(root, f"{folder.name} cannot be read: {error.strerror}") from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not entry.name.isprintable():  # also a name that is no text
            raise invalid(root, f"the name of a file is no plain text: {entry.name!a}")
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            if depth > 16:
                raise invalid(root, "has folders in folders, more than 16 deep")
            yield from files_of(path, root, depth + 1)
        elif entry.is_file():
            relative = path.relative_to(root).as_posix()
            yield SkillFile(relative, os.stat(inside(root, relative)).st_size)
        elif entry.is_symlink():
            inside(root, path.relative_to(root).as_posix())


def invalid(folder: Path, why: str) -> InvalidSkill:
    return InvalidSkill(f"the skill {folder}: {why}", folder=str(folder))
