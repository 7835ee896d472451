"""A primary and its standby, both real: cut apart, failed over, and the old one brought back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from postgres_server import PASSWORD, SETTINGS, Server

TIMEOUT = 60.0
SYNCHRONOUS = {**SETTINGS, "synchronous_standby_names": "'*'"}


class PostgresPair:
    """Two servers, of which the first is the primary to begin with."""

    def __init__(self, first: Server, second: Server, *, synchronous: bool) -> None:
        self.first = first
        self.second = second
        self._settings = SYNCHRONOUS if synchronous else SETTINGS

    @property
    def url(self) -> str:
        """One URL with both hosts: whoever accepts writes is connected to."""
        hosts = f"127.0.0.1:{self.first.port},127.0.0.1:{self.second.port}"
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres?target_session_attrs=read-write"

    def start(self) -> None:
        self.first.create()
        self.first.start()
        self.first.clone(self.second)
        self.second.start()
        if self._settings is SYNCHRONOUS:
            ask(self.first, "ALTER SYSTEM SET synchronous_standby_names = '*'")
            ask(self.first, "SELECT pg_reload_conf()")
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the standby has all that was committed on the primary.

        What is inserted and not flushed is no commit; nothing sends it for a quarter of a minute.
        """
        written = ask(self.first, "SELECT pg_current_wal_flush_lsn()::text")
        until(self.second, f"pg_last_wal_replay_lsn() >= '{written}'")

    def cut(self) -> None:
        """Let the standby fall behind: it has all up to now, and nothing of what follows."""
        self.catch_up()
        ask(self.second, "ALTER SYSTEM SET primary_conninfo = ''")
        ask(self.second, "SELECT pg_reload_conf()")
        until(self.second, "NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")

    def fail_over(self) -> None:
        """Kill the primary, and make the standby one."""
        self.first.stop()
        self.second.promote()

    def bring_back(self) -> None:
        """Start the old primary as it was, as somebody does who does not know of the new one."""
        self.first.start(self._settings)

    def stop(self) -> None:
        servers = (self.first, self.second)
        for server in servers:
            with suppress(RuntimeError):  # it does not run
                server.stop()
        for server in servers:  # after both: the second may use a copy of the programs in the first
            server.remove()


@contextmanager
def postgres_pair(*, synchronous: bool = False) -> Iterator[PostgresPair]:
    servers = [Server.in_new_directory("outlast-pair-") for _ in range(2)]
    pair = PostgresPair(*servers, synchronous=synchronous)
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


def ask(server: Server, sql: str) -> object:
    """Return the first value of a query's answer."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(sql.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def until(server: Server, condition: str) -> None:
    """Wait until a server says that something is so."""
    give_up = time.monotonic() + TIMEOUT
    while not ask(server, f"SELECT {condition}"):
        if time.monotonic() > give_up:
            raise TimeoutError(condition)
        time.sleep(0.02)
