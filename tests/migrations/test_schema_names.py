"""Both schemas say the same thing in the same words; what only one of them has is listed here."""

from __future__ import annotations

import re
from pathlib import Path

import outlast.stores

STORES = Path(outlast.stores.__file__).parent

# SQLite joins by one integer key where PostgreSQL has several columns, of which the tenant is one.
KEYS = {"tenant", "sid", "lane", "lid", "oid", "key", "first_offset", "arrival", "delivery"}

ONLY_SQLITE = {
    "sessions": {"parent", "orphaned"},  # in PostgreSQL's `children`
    "listeners": {"address", "place"},  # PostgreSQL has NOTIFY
    "erasures": set[str](),
}
ONLY_POSTGRES = {
    "children": {"parent", "orphaned"},
    "sessions": {"last_offset", "last_at"},  # SQLite asks the session's last row of the log
    "lanes": {"commit_offset", "commit_at"},
    "limits": {"most"},  # SQLite asks the permits, as no other transaction writes meanwhile
    "budgets": {"limits"},  # of `terms`, in the form of the amounts that a function compares
    # Where a worker is seen to live: SQLite's lock file lies beside the database.
    "workers": {"sign", "lock_name", "lock_device", "lock_inode", "liveness_address"},
    "server": {"one", "started_at", "open_since", "epoch", "file_node"},
    "migrations": {"version", "name", "applied_at"},  # SQLite has `PRAGMA user_version`
}


def tables(dialect: str) -> dict[str, set[str]]:
    """The columns of each table, keys aside."""
    schema = re.sub(r"--.*", "", (STORES / dialect / "schema.sql").read_text("utf-8"))
    made = re.findall(
        r"^CREATE (?:UNLOGGED )?TABLE outlast[._](\w+) \((.*?)^\)", schema, re.M | re.S
    )
    return {name: set(re.findall(r"^    ([a-z]\w*) ", body, re.M)) - KEYS for name, body in made}


def missing(here: dict[str, set[str]], there: dict[str, set[str]]) -> dict[str, set[str]]:
    """What a schema has and the other lacks, by table."""
    return {
        name: columns - there.get(name, set())
        for name, columns in here.items()
        if name not in there or columns - there[name]
    }


def test_a_column_that_both_stores_have_has_one_name() -> None:
    sqlite, postgres = tables("sqlite"), tables("postgres")

    assert missing(sqlite, postgres) == ONLY_SQLITE
    assert missing(postgres, sqlite) == ONLY_POSTGRES
