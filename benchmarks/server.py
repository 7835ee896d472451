"""A PostgreSQL of the benchmarks' own, from a package: nothing of the system's is used.

It is as durable as PostgreSQL is by default, and so are all other settings.
`OUTLAST_TEST_POSTGRES` names a server to use instead.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from postgres_server import Server


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Run a server whose files are in a new directory within this one; give its URL."""
    if url := os.environ.get("OUTLAST_TEST_POSTGRES"):
        yield url
        return
    own = Server.in_new_directory("outlast-postgres-", directory)
    try:
        own.create()
        own.start({"fsync": "on", "synchronous_commit": "on"})
        try:
            yield own.url
        finally:
            own.stop("fast")
    finally:
        own.remove()
