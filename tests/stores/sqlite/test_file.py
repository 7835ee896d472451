"""Opening a SQLite store: what it refuses, and that it touches nothing that it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
import pytest_asyncio

from outlast.errors import (
    StoreCorrupt,
    StoreFromTheFuture,
    StoreUnavailable,
    UnsupportedStore,
)
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite import path as place
from outlast.stores.sqlite.path import file_system
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import admit, new_session

MOUNTS = """\
proc /proc proc rw,nosuid 0 0
/dev/vda1 / ext4 rw,relatime 0 0
tmpfs /run tmpfs rw 0 0
server:/export /mnt/share nfs4 rw,vers=4.2 0 0
//nas/data /mnt/my\\040nas cifs rw 0 0
/dev/vdb1 /mnt/share/local ext4 rw 0 0
"""


@pytest_asyncio.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.migrate()
    yield store
    await store.close()


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def fill(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def copy(source: Path, target: Path) -> None:
    """Take a database with its log, as a crash would leave them."""
    target.mkdir()
    for name in ("outlast.db", "outlast.db-wal"):
        (target / name).write_bytes((source / name).read_bytes())


def make_database(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def damage(path: Path, table: str) -> None:
    """Overwrite the first page of a table."""
    with closing(sqlite3.connect(path)) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = database.execute(query, (table,)).fetchone()
    whole = bytearray(path.read_bytes())
    whole[(page - 1) * size : page * size] = b"\xff" * size
    path.write_bytes(whole)


async def test_nothing_touches_the_disk_before_migrate(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "outlast.db")
    with pytest.raises(StoreUnavailable, match="migrate"):
        await store.listing.session("ses_1")
    await store.close()
    assert contents(tmp_path) == {}


async def test_a_closed_store_leaves_one_file(path: Path, tmp_path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    await admit(store, new_session(ManualClock()))
    await store.close()
    assert list(contents(tmp_path)) == ["outlast.db"]


async def test_a_path_may_hold_any_character(tmp_path: Path) -> None:
    odd = tmp_path / "what? #1 100%.db"
    store = SqliteStore(odd)
    await store.migrate()
    await store.close()
    assert odd.stat().st_size > 0


@pytest.mark.parametrize(
    ("statements", "error"),
    [
        (["PRAGMA application_id = 0x4f75746c", "PRAGMA user_version = 99"], StoreFromTheFuture),
        (["PRAGMA application_id = 0x486f6c64", "PRAGMA user_version = 8"], UnsupportedStore),
        (["PRAGMA application_id = 12345"], StoreCorrupt),
        (["PRAGMA user_version = 7"], StoreCorrupt),
    ],
    ids=["a later version", "Holdfast's", "another program's", "some other program's"],
)
@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
async def test_a_file_that_is_refused_keeps_every_byte(
    path: Path, mode: str, statements: list[str], error: type[Exception]
) -> None:
    make_database(path, f"PRAGMA journal_mode = {mode}", "CREATE TABLE theirs (x)", *statements)
    before = contents(path.parent)
    with pytest.raises(error):
        await SqliteStore(path).migrate()
    assert contents(path.parent) == before


async def test_a_file_that_holdfast_made_is_refused_by_name(path: Path) -> None:
    make_database(
        path,
        "PRAGMA journal_mode = WAL",
        "CREATE TABLE holdfast_sessions (sid INTEGER PRIMARY KEY)",
        "PRAGMA application_id = 0x486f6c64",
        "PRAGMA user_version = 8",
    )
    with pytest.raises(UnsupportedStore, match="made by Holdfast, the former name"):
        await SqliteStore(path).migrate()


async def test_a_later_version_that_a_crash_left_in_the_log_is_found(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    with closing(sqlite3.connect(tmp_path / "outlast.db", isolation_level=None)) as theirs:
        theirs.execute("PRAGMA journal_mode = WAL")
        theirs.execute("PRAGMA application_id = 0x4f75746c")
        theirs.execute("PRAGMA user_version = 99")
        copy(tmp_path, crashed)
    before = contents(crashed)
    with pytest.raises(StoreFromTheFuture):
        await SqliteStore(crashed / "outlast.db").migrate()
    after = contents(crashed)
    assert [after[name] for name in before] == list(before.values())


@pytest.mark.parametrize("text", [b"Dear diary, " * 1000, b"x"], ids=["long", "short"])
async def test_a_file_that_is_no_database_keeps_every_byte(path: Path, text: bytes) -> None:
    fill(path, text)
    before = contents(path.parent)
    with pytest.raises(StoreCorrupt, match="backup"):
        await SqliteStore(path).migrate()
    assert contents(path.parent) == before


async def test_damage_that_shows_later_is_reported_as_such(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    session = (await admit(store, new_session(ManualClock()))).session_id
    await store.close()
    damage(path, "outlast_sessions")
    await store.migrate()
    with pytest.raises(StoreCorrupt):
        await store.listing.session(session)
    await store.close()


async def test_an_empty_file_becomes_a_store(path: Path) -> None:
    fill(path, b"")
    store = SqliteStore(path)
    await store.migrate()
    await store.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_a_store_lives_beside_tables_of_the_applications_own(path: Path) -> None:
    make_database(path, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)")
    store = SqliteStore(path)
    await store.migrate()
    await admit(store, new_session(ManualClock()))
    await store.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT x FROM theirs").fetchall() == [(1,)]


async def test_a_migration_that_fails_leaves_nothing_behind(path: Path) -> None:
    make_database(path, "CREATE TABLE outlast_lanes (theirs)")
    with pytest.raises(Exception, match="outlast_lanes"):
        await SqliteStore(path).migrate()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("outlast_lanes",)]
        assert database.execute("PRAGMA user_version").fetchone() == (0,)


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist; create it"):
        await SqliteStore(tmp_path / "no" / "such" / "place.db").migrate()
    assert contents(tmp_path) == {}


async def test_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedStore):
        await SqliteStore(tmp_path).migrate()


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("/home/me", "ext4"),
        ("/run", "tmpfs"),
        ("/runner", "ext4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/share/deep/down", "nfs4"),
        ("/mnt/share/local/deep", "ext4"),
        ("/mnt/my nas/x", "cifs"),
    ],
)
def test_the_file_system_of_a_path_is_that_of_its_nearest_mount(where: str, kind: str) -> None:
    assert file_system(MOUNTS, where) == kind


def test_a_table_of_mounts_that_says_nothing_is_no_reason_to_refuse() -> None:
    assert file_system("", "/home/me") == ""
    assert file_system("nonsense\n\n", "/home/me") == ""


async def test_a_network_file_system_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = tmp_path / "mounts"
    table.write_text(f"server:/export {tmp_path} nfs4 rw 0 0\n")
    monkeypatch.setattr(place, "MOUNTS", table)
    with pytest.raises(UnsupportedStore, match="network file system"):
        await SqliteStore(path).migrate()
    assert list(contents(tmp_path)) == ["mounts"]


async def test_a_store_can_be_opened_again_after_it_was_closed(store: SqliteStore) -> None:
    clock = ManualClock()
    session = (await admit(store, new_session(clock))).session_id
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.listing.session(session)
    await store.migrate()
    assert await store.listing.session(session) is not None
