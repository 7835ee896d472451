"""The schema of SQLite files: migrations from version 1 on, and the needs of the queries."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import outlast.stores.sqlite
from outlast.clock import Clock
from outlast.errors import StoreFromTheFuture
from outlast.stores.sqlite.database import HERE, QUERIES, load_migrations, open_database, split
from outlast.stores.sqlite.erasure import PARTS
from outlast.stores.sqlite.migration import migrate, open_for_writing

PACKAGE = Path(outlast.stores.sqlite.__file__).parent


def build(*scripts: str) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    for script in scripts:
        for statement in split(script):
            database.execute(statement)
    return database


def words(sql: str) -> list[str]:
    """A statement without its comments and its layout."""
    return re.findall(r"\w+|[^\w\s]", re.sub(r"--.*", "", sql))


def shape(database: sqlite3.Connection) -> dict[str, list[str]]:
    rows = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: words(sql) for name, sql in rows}


@pytest.fixture
def today() -> Iterator[sqlite3.Connection]:
    with closing(build((HERE / "schema.sql").read_text("utf-8"))) as database:
        yield database


def test_migrations_are_numbered_from_two_without_gaps() -> None:
    numbers = [int(page.name.partition("_")[0]) for page in load_migrations()]
    assert numbers == list(range(2, len(numbers) + 2))


# From version 1 to 2


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of version 1."""
    path = tmp_path / "outlast.db"
    open_for_writing(path, Clock()).close()
    return path


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A migration that makes version 2."""
    script = tmp_path / "0002_colour.sql"
    script.write_text("ALTER TABLE outlast_lanes ADD COLUMN colour TEXT;\n")
    return script


def migrate_to(path: Path, *migrations: Path) -> None:
    with closing(open_database(path, Clock())) as db:
        migrate(db, migrations)


def test_an_older_file_gets_the_migrations_that_it_lacks(path: Path, second: Path) -> None:
    migrate_to(path, second)
    migrate_to(path, second)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)
        assert database.execute("SELECT colour FROM outlast_lanes").fetchall() == []
    with pytest.raises(StoreFromTheFuture):
        open_for_writing(path, Clock())


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, second: Path) -> None:
    broken = second.with_name("0003_broken.sql")
    broken.write_text("ALTER TABLE outlast_nowhere ADD COLUMN colour TEXT;\n")
    with pytest.raises(sqlite3.OperationalError):
        migrate_to(path, second, broken)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        assert "colour" not in shape(database)["outlast_lanes"]


def test_everything_of_ours_says_so_in_its_name(today: sqlite3.Connection) -> None:
    assert all(name.startswith("outlast_") for name in shape(today))


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_fits_the_schema(today: sqlite3.Connection, name: str) -> None:
    query = QUERIES[name]
    today.execute(f"EXPLAIN {query.text}", [0] * len(query.names))


def test_every_query_is_used_and_every_name_is_that_of_a_query() -> None:
    calls = {"one", "all", "run", "each"}
    used: set[str] = set()
    for module in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and node.value in QUERIES:
                used.add(node.value)
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in calls:
                names = [n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)]
                assert set(names) <= set(QUERIES), f"{module.name}:{node.lineno}"
    assert used == set(QUERIES)


# What would cost more with every session, turn or record: none may appear on these paths.
HOT = [
    "find_lane",
    "advance_lane",
    "advance_and_release_lane",
    "append",
    "last_row",
    "arrivals",
    "leave_queue",
    "change_delivery",
    "receipt_by_delivery",
    "receipt_by_dispatch",
    "target",
    "receive",
    "next_ready_at",
    "log_after",
    "log_before",
    "log_of_lane",
    "session_of_log",
    "open_requests",
    "sessions_of_tenant",
    "open_requests_of_tenant",
    "sessions_of_parent",
    "sessions_of_tag",
    "sessions_of_tag_of_tenant",
    "add_tags",
    "orphans",
    "add_session",
    "tell_outbox_cursors",
    "take_outbox_cursors",
    "settle_outbox_cursor",
    "next_due_at",
    "outbox_cursors_of_session",
    "dead_letters_of_session",
    "use_blob",
    "find_token",
    "find_dead_token",
    "log_sizes",
    "erase_log",
    "blobs_of_session",
    "erase_unshared_blob",
    "let_go_of_blob",
    "document",
    "documents",
    "sweep_documents",
    "add_document",
    "replace_document",
    "delete_document",
    *PARTS,
]


@pytest.mark.parametrize("name", HOT)
def test_a_hot_query_searches_and_sorts_nothing(today: sqlite3.Connection, name: str) -> None:
    query = QUERIES[name]
    explained = today.execute(f"EXPLAIN QUERY PLAN {query.text}", [0] * len(query.names))
    plan = [row[3] for row in explained]
    assert not [step for step in plan if "TEMP B-TREE" in step]
    scans = [step for step in plan if step.startswith("SCAN") and "USING INDEX" not in step]
    assert not [step for step in scans if "VIRTUAL TABLE" not in step]  # those are parameters
