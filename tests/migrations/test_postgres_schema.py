"""The schema in PostgreSQL: its files, the store made from them, the needs of the queries."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import pq

import outlast.stores.postgres
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.migration import NEWEST
from outlast.stores.postgres.statement import (
    HERE,
    in_schema,
    load_functions,
    load_migrations,
    load_queries,
)

PACKAGE = Path(outlast.stores.postgres.__file__).parent
QUERIES = load_queries("outlast")

# All that makes a schema what it is, without its name.
SHAPE = """
SELECT 'column', c.relname || '.' || a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attstorage,
                 a.attidentity, pg_get_expr(d.adbin, d.adrelid), l.collname)
  FROM pg_class AS c
  JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
  LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
 WHERE c.relnamespace = to_regnamespace(%(schema)s)
UNION ALL
SELECT 'relation', c.relname,
       concat_ws(' ', c.relkind, c.relpersistence, array_to_string(c.reloptions, ','),
                 pg_get_partkeydef(c.oid), pg_get_expr(c.relpartbound, c.oid),
                 CASE c.relkind WHEN 'v' THEN pg_get_viewdef(c.oid)
                                WHEN 'i' THEN pg_get_indexdef(c.oid) END)
  FROM pg_class AS c
 WHERE c.relnamespace = to_regnamespace(%(schema)s)
UNION ALL
SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
  FROM pg_constraint
 WHERE connamespace = to_regnamespace(%(schema)s)
UNION ALL
SELECT 'function', proname, pg_get_functiondef(oid)
  FROM pg_proc
 WHERE pronamespace = to_regnamespace(%(schema)s)
"""


# The digest of the functions of the newest version. Changed functions reach a database only with a
# new version: add a migration, if only one with a comment, and its digest here. Until version 1 is
# released it may change in place.
FUNCTIONS = {1: "02677d02e054f45e05319facd46000ff8b6178028aa270d85fbbe9d75431f6fc"}


def today() -> list[str]:
    pages = [HERE / "schema.sql", *load_functions()]
    return [page.read_text("utf-8") for page in pages]


@pytest.fixture
def connection(postgres_server: str) -> Iterator[psycopg.Connection[tuple[str, str, str]]]:
    """A connection whose work is undone."""
    with psycopg.connect(postgres_server) as connection:
        yield connection
        connection.rollback()


def build(connection: psycopg.Connection[tuple[str, str, str]], scripts: list[str]) -> str:
    schema = f"shape_{uuid4().hex}"
    connection.execute(f"CREATE SCHEMA {schema}".encode())
    for script in scripts:
        connection.execute(in_schema(script, schema).encode())
    return schema


def shape(
    connection: psycopg.Connection[tuple[str, str, str]], schema: str
) -> dict[tuple[str, str], str]:
    rows = connection.execute(SHAPE, {"schema": schema}).fetchall()
    return {(kind, name.replace(schema, "")): what.replace(schema, "") for kind, name, what in rows}


def test_functions_that_have_changed_are_a_new_version() -> None:
    text = "".join(page.read_text("utf-8") for page in load_functions())
    assert {NEWEST: sha256(text.encode()).hexdigest()} == FUNCTIONS


def test_migrations_are_numbered_from_two_without_gaps() -> None:
    numbers = [int(page.name.partition("_")[0]) for page in load_migrations()]
    assert numbers == list(range(2, NEWEST + 1))


def test_what_the_store_makes_is_what_its_files_say(
    connection: psycopg.Connection[tuple[str, str, str]], postgres_server: str
) -> None:
    # A schema that no other test had: in one that is used again, tables of their tools are left.
    schema = f"shape_{uuid4().hex}"
    asyncio.run(make_store(f"{postgres_server}?schema={schema}"))
    try:
        found = shape(connection, schema)
        assert len(found) > 200
        assert found == shape(connection, build(connection, today()))
    finally:
        connection.rollback()
        connection.execute(f"DROP SCHEMA {schema} CASCADE")
        connection.commit()


async def make_store(url: str) -> None:
    store = PostgresStore(url)
    await store.migrate()
    await store.close()


def test_every_query_fits_the_schema(
    connection: psycopg.Connection[tuple[str, str, str]],
) -> None:
    schema = build(connection, today())
    for name, query in load_queries(schema).items():
        result = connection.pgconn.prepare(b"", query.text)
        assert result.status == pq.ExecStatus.COMMAND_OK, f"{name}: {result.error_message!r}"


def test_every_query_is_used_and_every_name_is_that_of_a_query() -> None:
    used: set[str] = set()
    for module in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and node.value in QUERIES:
                used.add(str(node.value))
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("queries"):
                names = [n.value for n in ast.walk(node.slice) if isinstance(n, ast.Constant)]
                assert set(names) <= set(QUERIES), f"{module.name}:{node.lineno}"
    assert used == set(QUERIES)


def test_every_key_begins_or_ends_with_the_tenant(
    connection: psycopg.Connection[tuple[str, str, str]],
) -> None:
    schema = build(connection, today())
    rows = connection.execute(
        "SELECT c.relname, pg_get_indexdef(i.indexrelid), '' FROM pg_index AS i"
        " JOIN pg_class AS c ON c.oid = i.indrelid"
        " WHERE i.indisunique AND c.relnamespace = to_regnamespace(%s) AND NOT c.relispartition",
        [schema],
    ).fetchall()
    without = {table for table, index, _ in rows if "tenant" not in index.partition(" USING ")[2]}
    of_no_tenant = {"limits", "workers", "deployments", "server", "migrations"}
    assert without == of_no_tenant
