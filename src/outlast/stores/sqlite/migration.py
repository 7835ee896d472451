"""The schema's version: recognize the file, make it, and bring an older one up to date.

A new file is made from `schema.sql` alone. An older one gets the files of `migrations/` that it
lacks, of which the first makes version 2. Nothing here knows what the tables mean.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from importlib.resources.abc import Traversable
from pathlib import Path

from outlast.clock import Clock
from outlast.errors import StoreCorrupt, StoreFromTheFuture, UnsupportedStore
from outlast.stores.sqlite.database import (
    SCHEMA,
    Database,
    connect,
    load_migrations,
    open_database,
    retry_while_locked,
    split,
)
from outlast.stores.sqlite.error import code_of, explain
from outlast.stores.sqlite.liveness import workers_directory
from outlast.stores.sqlite.private import (
    make_private,
    refuse_foreign_directory,
    warn_if_open,
)

APPLICATION = 0x4F75746C  # "Outl": what `file` and other programs know the database by
HOLDFAST = 0x486F6C64  # "Hold": the former name of this project
MIGRATIONS = load_migrations()
NEWEST = 1 + len(MIGRATIONS)
SMALLEST = 512
OLDEST_SQLITE = (3, 38, 0)  # the first with ->>

# A commit writes every page that it touches, so small pages make small commits. And a text
# that does not fit fills pages of its own to the brim, where a large page holds one text of
# 2 KB and is then half empty: measured 1.3 bytes for each of incompressible text against 2.0.
PAGE_SIZE = 1024


def check_file(path: Path, clock: Clock) -> None:
    """Refuse a file that is not ours or of a later version, changing not one byte of it."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        raise UnsupportedStore(
            f"this Python has SQLite {sqlite3.sqlite_version}, and Outlast needs 3.38 or newer;"
            " use a newer Python"
        )
    size = path.stat().st_size if path.exists() else 0
    if size == 0:
        return
    if size < SMALLEST:  # SQLite would take it for an empty database
        raise not_a_database(path)
    try:
        look(path, clock)
    except StoreCorrupt:
        look(path, clock)  # it was read while another process made it, or it is not ours


def look(path: Path, clock: Clock) -> None:
    """Refuse a file by its header.

    Without a log beside it the header is the whole truth, and `immutable` makes sure that
    not even a lock is taken; else the log may hold a newer one.
    """
    has_log = path.with_name(path.name + "-wal").exists()
    try:
        found = probe(path, clock, "mode=ro" if has_log else "mode=ro&immutable=1")
    except sqlite3.Error as error:
        if code_of(error) & 0xFF == sqlite3.SQLITE_CANTOPEN and has_log:
            return  # its log went away meanwhile: opening it for writing will tell
        raise explain(error, path) from error
    check_version(*found, path)


def not_a_database(path: Path) -> StoreCorrupt:
    return StoreCorrupt(
        f"{path} is no SQLite database; name another file, or restore it from a backup",
        path=str(path),
    )


def probe(path: Path, clock: Clock, options: str) -> tuple[int, int]:
    def attempt() -> tuple[int, int]:
        with closing(connect(path, options)) as raw:
            return version_of(raw)

    return retry_while_locked(attempt, clock, path)


def version_of(raw: sqlite3.Connection) -> tuple[int, int]:
    (application,) = raw.execute("PRAGMA application_id").fetchone()
    (version,) = raw.execute("PRAGMA user_version").fetchone()
    return application, version


def check_version(application: int, version: int, path: Path, newest: int = NEWEST) -> None:
    """Refuse a file that is not for us.

    An empty database, or one with tables of the application's own that names no program, may be
    used.
    """
    if application == HOLDFAST:
        raise UnsupportedStore(
            f"{path} was made by Holdfast, the former name of this project; Outlast does not read"
            " it: finish its sessions with Holdfast, or name another file",
            path=str(path),
        )
    if application not in (0, APPLICATION) or (application == 0 and version):
        raise StoreCorrupt(
            f"{path} is the database of another program; name another file", path=str(path)
        )
    if version > newest:
        raise StoreFromTheFuture(
            f"{path} has schema version {version} and this Outlast knows up to {newest};"
            " upgrade Outlast",
            path=str(path),
            version=version,
        )


def open_for_writing(path: Path, clock: Clock) -> Database:
    """Open the file, create it if need be, and bring its schema up to date."""
    check_file(path, clock)
    # Before anything of the file is used: in that directory a stranger could make living workers
    # look dead.
    refuse_foreign_directory(workers_directory(path), path)
    # Before SQLite makes it, with whatever rights the umask leaves.
    make_private(path)
    warn_if_open(path)
    db = open_database(path, clock, options="mode=rwc")
    try:
        if db.retry_while_locked(lambda: version_with_wal(db)) != (APPLICATION, NEWEST):
            migrate(db)
    except sqlite3.Error as error:
        db.close()
        raise explain(error, path) from error
    except BaseException:
        db.close()
        raise
    return db


def version_with_wal(db: Database) -> tuple[int, int]:
    """Let readers and the writer not wait for one another, which the file remembers, and read it.

    The first read after the switch may have to wait too, for a process that makes the log's index.
    """
    db.raw.execute(f"PRAGMA page_size = {PAGE_SIZE}")  # of an empty file only
    (mode,) = db.raw.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise UnsupportedStore(
            f"SQLite cannot keep a write-ahead log beside {db.path} (it says {mode!r});"
            " put it on another disk",
            path=str(db.path),
        )
    return version_of(db.raw)


def migrate(db: Database, migrations: Sequence[Traversable] = MIGRATIONS) -> None:
    """Apply what is missing, all of it or nothing; the second of two processes finds it done."""
    newest = 1 + len(migrations)
    db.begin()
    try:
        # Read again inside the transaction: another process may have migrated it since.
        application, version = version_of(db.raw)
        check_version(application, version, db.path, newest)
        for script in migrations[version - 1 :] if version else [SCHEMA]:
            for statement in split(script.read_text("utf-8")):
                db.raw.execute(statement)
        db.raw.execute(f"PRAGMA application_id = {APPLICATION}")
        db.raw.execute(f"PRAGMA user_version = {newest}")
        db.commit()
    finally:
        db.roll_back()
