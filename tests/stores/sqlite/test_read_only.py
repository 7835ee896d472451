"""A file or a directory that is read-only: said when the store is opened, with nothing touched."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.stores.sqlite import SqliteStore

OPEN = """
import asyncio, os, sys
from outlast.errors import StoreUnavailable
from outlast.stores.sqlite import SqliteStore

async def open_and_close(path):
    store = SqliteStore(path)
    try:
        await store.migrate()
    except StoreUnavailable as error:
        return error.message
    await store.close()
    return "opened"

path, scratch, user = sys.argv[1:]
asyncio.run(open_and_close(scratch))  # imports all that is needed: the user may not read that
if os.geteuid() == 0:  # permissions do not bind root
    os.setuid(int(user))
print(asyncio.run(open_and_close(path)))
"""
NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user can reach."""
    with tempfile.TemporaryDirectory(prefix="outlast-read-only-") as name:
        place = Path(name)
        place.chmod(0o755)
        yield place
        place.chmod(0o755)


def open_unprivileged(path: Path) -> str:
    """Open a store in a process of a user whom permissions bind."""
    with tempfile.TemporaryDirectory() as scratch:
        done = subprocess.run(
            [sys.executable, "-c", OPEN, str(path), f"{scratch}/scratch.db", str(NOBODY)],
            capture_output=True,
            check=False,
            text=True,
        )
    return done.stdout.strip() or done.stderr


def own(path: Path, mode: int) -> None:
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, -1)


async def make_store(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.migrate()
    await store.close()


def names(place: Path) -> list[str]:
    return sorted(file.name for file in place.iterdir())


def test_a_directory_that_is_read_only_is_told_at_once(place: Path) -> None:
    own(place, 0o555)
    said = open_unprivileged(place / "outlast.db")
    assert f"{place} is read-only for this user" in said
    assert names(place) == []


def test_a_file_that_is_read_only_is_told_at_once(place: Path) -> None:
    own(place, 0o755)
    path = place / "outlast.db"
    asyncio.run(make_store(path))
    for file in place.iterdir():
        own(file, 0o755 if file.is_dir() else 0o644)
    before = path.read_bytes()
    path.chmod(0o444)
    said = open_unprivileged(path)
    assert f"{path} is read-only for this user" in said
    assert path.read_bytes() == before
