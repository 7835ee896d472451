"""Stops a server and removes its directory when its director is gone, however that ended.

`python -m chaos.keeper DIRECTORY` waits for its input to end.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from postgres_server import Server

from chaos import SEARCH_PATH


@asynccontextmanager
async def kept(server: Server) -> AsyncIterator[None]:
    """Have a keeper for a server; leaving this has it stop the server, and waits for that."""
    keeper = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chaos.keeper", str(server.place)),
        stdin=PIPE,
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        start_new_session=True,  # it outlives a director that is killed with its whole group
    )
    assert keeper.stdin is not None
    try:
        yield
    finally:
        keeper.stdin.close()
        await asyncio.shield(keeper.wait())


def main() -> None:
    server = Server(Path(sys.argv[1]))
    sys.stdin.read()
    with suppress(RuntimeError, FileNotFoundError):  # it is down, or was never created
        server.stop()
    server.remove()


if __name__ == "__main__":
    main()
