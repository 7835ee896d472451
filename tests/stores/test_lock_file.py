"""The directory of lock files, which lies where every user may create files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from outlast.stores import lock_file
from outlast.stores.lock_file import LockFile, is_free, own_directory, remove_leftovers

LATER = 2 * lock_file.A_DAY


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that all users share, and another where temporary files are kept."""
    first, second = tmp_path / "shm", tmp_path / "tmp"
    first.mkdir()
    second.mkdir()
    monkeypatch.setattr(lock_file, "SHARED_MEMORY", first)
    monkeypatch.setattr(tempfile, "tempdir", str(second))
    return first


def test_all_processes_of_a_user_come_to_one_directory_that_is_closed_to_others(
    shared: Path,
) -> None:
    directory = own_directory()
    assert directory is not None
    assert directory.parent == shared
    assert directory.stat().st_mode & 0o777 == 0o700
    assert own_directory() == directory


def test_a_directory_that_others_may_enter_is_not_used(shared: Path) -> None:
    first = own_directory()
    assert first is not None
    first.chmod(0o755)
    second = own_directory()
    assert second is not None
    assert second.parent == shared.with_name("tmp")
    second.rmdir()
    second.symlink_to(shared)
    assert own_directory() is None


def test_a_lock_counts_only_on_the_file_that_is_meant(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "w1.lock")
    identity = lock.take()
    assert not is_free(lock.path, identity)
    lock.drop()
    assert is_free(lock.path, identity)
    assert not is_free(lock.path, identity._replace(inode="1"))
    assert not is_free(tmp_path / "w2.lock", identity)


def test_files_of_the_long_dead_are_removed_and_no_others(tmp_path: Path) -> None:
    living, dead = LockFile(tmp_path / "w1.lock"), LockFile(tmp_path / "w2.lock")
    living.take()
    dead.take()
    dead.drop()
    remove_leftovers(tmp_path, now=0)
    assert dead.path.exists()
    remove_leftovers(tmp_path, now=int(dead.path.stat().st_mtime * 1000) + LATER)
    assert not dead.path.exists()
    assert living.path.exists()
    living.drop()
