"""Connections to the file, each with its packer and with the hints of its open transaction.

Owns how connections are opened, set up and tried again, and how a row of the log is read. SQLite's
busy handler does not cover opening, switching to WAL and recovery, so waiting for other processes
is done here, for all of it alike. Nothing in the process but sqlite3 may open the database file:
closing any descriptor of it would drop SQLite's locks. The statements are in `queries/`.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec

from outlast.clock import Clock
from outlast.core.codec import Packer, checksum_of, version_of
from outlast.core.name import MAIN
from outlast.core.record import Entry
from outlast.errors import StoreCorrupt, UsedAfterFork
from outlast.stores.sqlite.error import explain, is_passing, locked_for_too_long

Params = Mapping[str, Any]

PARAMETER = re.compile(r":(\w+)")
HERE = files("outlast.stores.sqlite")
NAME = "-- name: "


def named(page: str) -> Iterator[tuple[str, str]]:
    """Yield each statement of a page with its name, without the remarks above it."""
    for block in page.split(NAME)[1:]:
        name, _, text = block.partition("\n")
        lines = text.strip().splitlines()
        yield name.strip(), "\n".join(line for line in lines if not line.startswith("--"))


class Query(NamedTuple):
    """A statement with its parameters by place: SQLite's driver binds those in half the time."""

    text: str
    names: tuple[str, ...]
    pick: Callable[[Params], tuple[Any, ...]]

    @classmethod
    def parse(cls, text: str) -> Query:
        names = tuple(PARAMETER.findall(text))
        return cls(PARAMETER.sub("?", text), names, picker(names))


def picker(names: tuple[str, ...]) -> Callable[[Params], tuple[Any, ...]]:
    """Return what takes the named values from a mapping, in their order."""
    if len(names) > 1:
        return itemgetter(*names)
    if not names:
        return lambda _: ()
    [name] = names
    return lambda params: (params[name],)


def load_queries() -> dict[str, Query]:
    pages = sorted((HERE / "queries").iterdir(), key=lambda page: page.name)
    found = [pair for page in pages for pair in named(page.read_text("utf-8"))]
    queries = {name: Query.parse(text) for name, text in found}
    # A dict would keep the last of them, and a statement would be another than its caller means.
    assert len(queries) == len(found), "two statements have the same name"
    return queries


QUERIES = load_queries()


SCHEMA = HERE / "schema.sql"


def load_migrations() -> list[Traversable]:
    """Return the migrations in their order; the first of them makes version 2."""
    pages = [page for page in (HERE / "migrations").iterdir() if page.name.endswith(".sql")]
    return sorted(pages, key=lambda page: page.name)


def split(script: str) -> Iterator[str]:
    """Yield a script's statements one by one."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


T = TypeVar("T")
Row = tuple[Any, ...]

OFFSETS = 0xFFFF_FFFF
NOTHING: Params = {}
TIMEOUT = 60.0
FIRST_PAUSE = 0.000_5
LONGEST_PAUSE = 0.004

LOG_SIZE = 16 * 1024 * 1024
CACHE_SIZE = "PRAGMA cache_size = -8000"

# `wal_autocheckpoint`: a checkpoint in the middle of a commit would make it wait for the
# disk twice; the checkpointer does it. `fullfsync` is for macOS, where fsync alone leaves
# data in the drive's cache; elsewhere it does nothing. `trusted_schema`: a function in a
# view or trigger that was planted in the file is not run. `secure_delete`: zeros are written
# over what is deleted, in pages that become free too, since a session that is erased shall not be
# found in the file. Commits free next to nothing: no difference was measured to OFF.
SETTINGS = (
    "PRAGMA synchronous = {synchronous}",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA fullfsync = 1",
    "PRAGMA checkpoint_fullfsync = 1",
    "PRAGMA trusted_schema = 0",
    "PRAGMA secure_delete = ON",
    CACHE_SIZE,
    f"PRAGMA journal_size_limit = {LOG_SIZE}",
    "PRAGMA query_only = {query_only:d}",
)


# A store belongs to the process that opened it: SQLite's connections do not survive a fork.
_pid = os.getpid()


def _note_child() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note_child)


def check_process(pid: int) -> None:
    """Refuse to go on in another process than the one that opened the store."""
    if _pid != pid:  # known from the fork: asking the system costs more than the rest
        raise UsedAfterFork(
            "this store was opened before a fork, and SQLite's connections do not survive one;"
            " open a store of its own in each process"
        )


class Database:
    """One connection, used by one thread at a time.

    `hints` are the sessions that the open transaction wrote to, and whether something arrived for
    one of their lanes or a lane was given back. `written` counts bytes since the last checkpoint
    was considered, `expanded` bytes of blobs that were read.
    """

    def __init__(self, raw: sqlite3.Connection, path: Path, clock: Clock) -> None:
        self.raw = raw
        self.path = path
        self.clock = clock
        self.packer = Packer()
        self.hints: dict[str, bool] = {}
        self.written = 0
        self.expanded = 0

    def run(self, name: str, params: Params = NOTHING) -> int:
        """Run a named statement to its end and return the number of rows that it changed."""
        query = QUERIES[name]
        return self.raw.execute(query.text, query.pick(params)).rowcount

    def all(self, name: str, params: Params = NOTHING) -> list[Row]:
        """Return all rows of a named statement."""
        query = QUERIES[name]
        return self.raw.execute(query.text, query.pick(params)).fetchall()

    def one(self, name: str, params: Params = NOTHING) -> Row | None:
        """Return the first row of a named statement, which is finished then."""
        # All of them: a statement that is left open keeps its transaction, and the log cannot be
        # cut.
        rows = self.all(name, params)
        return rows[0] if rows else None

    def each(self, name: str, params: Params = NOTHING) -> Generator[Row, None, None]:
        """Yield the rows of a named statement; close it if it is not read to its end."""
        query = QUERIES[name]
        cursor = self.raw.execute(query.text, query.pick(params))
        try:
            yield from cursor
        finally:
            cursor.close()

    def begin(self, timeout: float = TIMEOUT) -> None:
        """Become the one writer of the file; wait for another one."""
        try:
            self.raw.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            # Another writer is waited for; what is wrong with the file is not made better by
            # waiting.
            if not is_passing(error):
                raise
            # Immediate: a transaction that begins by reading can fail at its first write, with
            # nothing that waiting would mend.
            self.retry_while_locked(lambda: self.raw.execute("BEGIN IMMEDIATE"), timeout)

    def try_begin(self) -> bool:
        """Become the one writer, unless there is another or something is wrong with the file."""
        try:
            self.raw.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            return False
        return True

    def commit(self) -> None:
        self.raw.execute("COMMIT")

    def roll_back(self) -> None:
        """End the transaction, unless SQLite has done so by itself."""
        if self.raw.in_transaction:
            self.raw.execute("ROLLBACK")

    def retry_while_locked(self, attempt: Callable[[], T], timeout: float = TIMEOUT) -> T:
        return retry_while_locked(attempt, self.clock, self.path, timeout)

    def close(self) -> None:
        self.raw.close()

    # The rows of a log

    def tell(self, session_id: str, *, arrived: bool) -> None:
        """Note a hint, for listeners to get after the commit."""
        self.hints[session_id] = arrived or self.hints.get(session_id, False)

    def load_blob(self, tenant: str, name: str) -> bytes:
        row = self.one("blob", {"tenant": tenant, "hash": bytes.fromhex(name)})
        if row is None:
            raise StoreCorrupt(f"the blob {name} is missing; restore the database from a backup")
        value = self.packer.expand(row[0])
        self.expanded += len(value)
        return value

    def entries(
        self, tenant: str, row: Row, after: int = 0, *, large: bool = True
    ) -> Iterator[Entry]:
        """Yield the records of a row of the log with their offsets, those after an offset."""
        key, _, lane, at, data = row
        version = version_of(data)
        load = partial(self.load_blob, tenant) if large else no_blob
        records = self.packer.unpack(data, load)
        name, checksum = lane_of(lane), checksum_of(at, data)
        for offset, record in enumerate(records, key & OFFSETS):
            if offset > after:
                yield Entry(offset, at, name, record, version, checksum)


def no_blob(_: str) -> bytes:
    """Stand for every large value where none is wanted."""
    return b""


def key_of(sid: int, offset: int) -> int:
    """Return the key of a session's row that begins at an offset."""
    return sid << 32 | offset


def column_of(lane: str) -> str | None:
    """Return a lane's name as rows hold it: NULL for `main`, which every session has."""
    return None if lane == MAIN else lane


def lane_of(column: str | None) -> str:
    return MAIN if column is None else column


def to_json(value: Any) -> str:
    """Return a value that a statement takes apart with `json_each`."""
    return msgspec.json.encode(value).decode()


def retry_while_locked(
    attempt: Callable[[], T], clock: Clock, path: Path, timeout: float = TIMEOUT
) -> T:
    """Try until no other process is in the way; pauses are short, and differ by process."""
    waited, pause = 0.0, FIRST_PAUSE
    while True:
        try:
            return attempt()
        except sqlite3.Error as error:
            if not is_passing(error):
                raise
            if waited >= timeout:
                raise locked_for_too_long(path, waited) from error
        # Not by SQLite's own handler, whose pauses are the same in every process: they would meet
        # again.
        nap = clock.jitter(pause)
        time.sleep(nap)
        waited, pause = waited + nap, min(pause * 2, LONGEST_PAUSE)


def address(path: Path, options: str) -> str:
    return f"file:{quote(str(path))}?{options}"


def connect(path: Path, options: str) -> sqlite3.Connection:
    """Make a connection that never waits by itself; the file is not touched yet.

    Callers see to it that one thread at a time uses it: any thread may renew a lease.
    """
    return sqlite3.connect(
        address(path, options),
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


def open_database(
    path: Path,
    clock: Clock,
    *,
    options: str = "mode=rw",
    synchronous: str = "FULL",
    query_only: bool = False,
    timeout: float = TIMEOUT,
) -> Database:
    """Open the file, and wait for a process that creates or recovers it."""

    def attempt() -> sqlite3.Connection:
        raw = connect(path, options)
        try:
            # Each connection has its own: none of them is kept in the file.
            for setting in SETTINGS:
                raw.execute(setting.format(synchronous=synchronous, query_only=query_only))
            # The file is opened, and recovered after a crash, by the first read: in here, where
            # that is tried again.
            raw.execute("PRAGMA user_version").fetchone()
        except BaseException:
            raw.close()
            raise
        return raw

    try:
        return Database(retry_while_locked(attempt, clock, path, timeout), path, clock)
    except sqlite3.Error as error:
        raise explain(error, path) from error
