"""Where sessions are kept during a run: a database of its own, and how it can be shaken."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import psycopg
from postgres_proxy import Wire, through
from postgres_server import SETTINGS, Server

from chaos.agent import EFFECTS
from chaos.disk import build, compiler
from chaos.keeper import kept

Rows = list[tuple[str, str]]

CREATE = f"CREATE TABLE IF NOT EXISTS {EFFECTS} (session TEXT, call TEXT)"
SELECT = f"SELECT session, call FROM {EFFECTS}"  # noqa: S608 - a name of ours
DURABLE = {
    **SETTINGS,
    "fsync": "on",
    "full_page_writes": "on",
    "autovacuum": "on",
    "max_connections": "100",  # so that they can all be taken
}
HOLD = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN IMMEDIATE")
time.sleep(float(sys.argv[2]))
connection.execute("ROLLBACK")
"""


class SqlitePlace:
    """A file. `url` is where a store finds it."""

    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "chaos.db"
        self.url = f"sqlite:///{self._path}"

    async def route(self) -> tuple[str, Wire | None]:
        """Return where a worker finds it; there is nothing on the way that could fail."""
        return self.url, None

    def create_effects(self) -> None:
        with closing(sqlite3.connect(self._path, timeout=30)) as connection:
            connection.execute(CREATE)

    def effects(self) -> Rows:
        with closing(sqlite3.connect(self._path)) as connection:
            return connection.execute(SELECT).fetchall()

    async def until_up_for(self, seconds: float) -> None:
        """A file is always there."""

    @contextmanager
    def between_writes(self) -> Iterator[None]:
        """Keep others from writing: one that is stopped in the middle of that would stop all."""
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")

    async def hold_the_lock(self, seconds: float) -> None:
        """Have another process keep everybody from writing."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HOLD, str(self._path), str(seconds)
        )
        try:
            await process.wait()
        finally:
            if process.returncode is None:
                process.kill()


class PostgresPlace:
    """A server of the run's own, and a wire to it for each worker."""

    name = "postgres"

    def __init__(self, server: Server, wires: AsyncExitStack) -> None:
        self._server = server
        self._wires = wires
        self.url = server.url
        self.has_disk = bool(server.environment)
        """Whether its disk can be full."""

    async def route(self) -> tuple[str, Wire | None]:
        """Return where one worker finds the server, and the wire there, which is its own."""
        wire = Wire(self.url)
        return through(self.url, await self._wires.enter_async_context(wire.opened())), wire

    async def fill(self, seconds: float) -> int:
        """Take all connections that are left, for a while; return how many those were."""
        async with AsyncExitStack() as taken:
            count = 0
            while True:
                try:
                    connection = await psycopg.AsyncConnection.connect(self.url)
                except psycopg.OperationalError:
                    break
                taken.push_async_callback(connection.close)
                count += 1
            await asyncio.sleep(seconds)
        return count

    async def fill_disk(self, seconds: float) -> None:
        """Have no room for a while: no table can grow."""
        state = Path(self._server.environment["DISK_STATE"])
        put(state, "g")
        await asyncio.sleep(seconds)
        put(state, "")

    def create_effects(self) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(CREATE)

    def effects(self) -> Rows:
        with psycopg.connect(self.url) as connection:
            return connection.execute(SELECT).fetchall()

    async def until_up_for(self, seconds: float) -> None:
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            await connection.execute("SELECT outlast.note_server_start()")
            await connection.execute(
                "SELECT pg_sleep(greatest(0, %s - outlast.uptime_ms() / 1000.0))", [seconds]
            )

    @contextmanager
    def between_writes(self) -> Iterator[None]:
        """Nobody's writes stop anybody else's here."""
        yield

    async def restart(self) -> None:
        """Stop the server as a crash would, and start it."""
        await asyncio.to_thread(self._server.stop, "immediate")
        await asyncio.to_thread(self._server.start, DURABLE)

    async def crash(self) -> None:
        """Kill one of the server's processes: it drops everybody, recovers, and lets them in."""
        async with (
            await psycopg.AsyncConnection.connect(self.url) as victim,
            await psycopg.AsyncConnection.connect(self.url) as bystander,
        ):
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            with suppress(psycopg.OperationalError):
                await bystander.execute("SELECT pg_sleep(60)")
        while not await self._is_open():  # noqa: ASYNC110 - a server has no event
            await asyncio.sleep(0.05)

    async def _is_open(self) -> bool:
        try:
            connection = await psycopg.AsyncConnection.connect(self.url)
        except psycopg.OperationalError:
            return False
        await connection.close()
        return True

    async def cut(self, share: float) -> int:
        """End a share of all connections but this one; return how many."""
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            cursor = await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
                " AND random() < %s",
                [share],
            )
            return cursor.rowcount


def put(state: Path, letter: str) -> None:
    """Say what the disk does from now on."""
    state.write_text(letter)


async def give_disk(server: Server) -> None:
    """Have the server's tables on a disk that can be full; its log is on another one."""
    server.place.chmod(0o755)  # its user is another one than that of the tests
    library, state = await build(server.place), server.place / "disk"
    state.touch(0o644)
    server.environment = {
        "LD_PRELOAD": str(library),
        "DISK_UNDER": str(server.data / "base"),
        "DISK_STATE": str(state),
    }


Place = SqlitePlace | PostgresPlace


@asynccontextmanager
async def opened(store: str, directory: Path) -> AsyncIterator[Place]:
    """Give a place that is there until this is left."""
    if store == "sqlite":
        yield SqlitePlace(directory)
        return
    server = Server.in_new_directory("outlast-chaos-")
    async with kept(server):
        await asyncio.to_thread(server.create)
        if compiler():
            await give_disk(server)
        await asyncio.to_thread(server.start, DURABLE)
        async with AsyncExitStack() as wires:
            yield PostgresPlace(server, wires)
