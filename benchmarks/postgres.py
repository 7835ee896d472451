"""PostgreSQL: a database is a schema of one server, whatever its name is elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.pq import ExecStatus
from psycopg.sql import SQL, Identifier

from benchmarks.anatomy import POSTGRES
from benchmarks.place import Row
from outlast.engine.settings import WorkerSettings
from outlast.stores.postgres.statement import BINARY, TEXT
from outlast.stores.postgres.writer import WriteGroup

ADD = b"INSERT INTO log (session, data) VALUES ($1, $2)"
ADD_GROUP = "INSERT INTO log (session, data) SELECT * FROM unnest(%b::integer[], %b::bytea[])"
TABLE = "CREATE TABLE log (id bigserial PRIMARY KEY, session integer, data bytea)"
SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint
  FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'
"""
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
DEAD = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE schemaname = %s"
UPTIME = "SELECT extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())::float"

Connection = psycopg.Connection[tuple[Any, ...]]


class PostgresFloor:
    """One prepared statement, one round trip and one transaction for each commit.

    A row goes to libpq directly, as in Outlast's store: it takes the client half of the time.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.pgconn.prepare(b"add", ADD)

    def add(self, row: Row) -> None:
        session, data = row
        values, formats = [str(session).encode(), data], [TEXT, BINARY]
        done = self._connection.pgconn.exec_prepared(b"add", values, formats)
        assert done.status == ExecStatus.COMMAND_OK, done.error_message

    def add_group(self, rows: Sequence[Row]) -> None:
        sessions, data = zip(*rows, strict=True)
        self._connection.execute(ADD_GROUP, (list(sessions), list(data)), prepare=True)


class PostgresDatabase:
    """A schema, in which Outlast or the floor makes its tables."""

    def __init__(self, server: str, schema: str) -> None:
        self._server = server
        self._schema = schema
        self.url = f"{server}{'&' if '?' in server else '?'}schema={schema}"

    @property
    def size(self) -> int:
        """Tables with their indexes, large values and dead rows, and not the server's own log."""
        with closing(connect(self._server)) as connection:
            [[size]] = connection.execute(SIZE, (self._schema,))
            return int(size)

    def vitals(self) -> dict[str, float]:
        """Connections to the server, and rows that wait for a vacuum."""
        with closing(connect(self._server)) as connection:
            [[connections]] = connection.execute(CONNECTIONS)
            [[dead]] = connection.execute(DEAD, (self._schema,))
            return {"connections": float(connections), "dead rows": float(dead)}

    @contextmanager
    def floor(self) -> Iterator[PostgresFloor]:
        schema = Identifier(self._schema)
        with closing(connect(self._server)) as connection:
            connection.execute(SQL("CREATE SCHEMA {}").format(schema))
            connection.execute(SQL("SET search_path TO {}").format(schema))
            connection.execute(TABLE)
            yield PostgresFloor(connection)

    def remove(self) -> None:
        drop = SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(Identifier(self._schema))
        with closing(connect(self._server)) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute(drop)


class PostgresPlace:
    """A server. Everything but the waiting happens on the event loop: it has no writer's thread."""

    store = "postgres"
    title = "PostgreSQL"
    transaction = (WriteGroup, "compose")
    anatomy = POSTGRES

    def __init__(self, server: str) -> None:
        self._server = server
        self._run = f"bench_{uuid4().hex[:12]}"
        self._made: dict[str, PostgresDatabase] = {}
        with closing(connect(server)) as connection:
            [[self.version]] = connection.execute("SHOW server_version")

    def database(self, name: str) -> PostgresDatabase:
        schema = f"{self._run}_{name}".replace("-", "_")
        database = self._made[name] = PostgresDatabase(self._server, schema)
        database.remove()
        return database

    def clear(self) -> None:
        for database in self._made.values():
            database.remove()
        self._made.clear()

    def wait_until_deaths_count(self) -> None:
        """The server has to have been up for a full lease."""
        with closing(connect(self._server)) as connection:
            [[uptime]] = connection.execute(UPTIME)
        time.sleep(max(0.0, WorkerSettings().lease - uptime))


def connect(url: str) -> Connection:
    return psycopg.connect(url, autocommit=True)
