"""A server or a worker as a process of its own: `python stream_process.py serve|work STORE PORT`.

It imports what it needs, says so, begins when told to, and goes on until it is killed; a server
stops at SIGTERM, too.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from stream_scene import talker

from outlast import Outlast, WorkerSettings
from outlast.server import ServerSettings
from outlast.server.serve import listen, open_socket

IMPORTED = "imported"
READY = "ready"


def ready() -> None:
    print(READY, flush=True)  # noqa: T201 - the test waits for it


async def serve(app: Outlast, port: int) -> None:
    settings, stop = ServerSettings(port=port), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with open_socket(settings) as to:
        async with app:
            await listen(app, settings, to, stop, ready)


async def work(app: Outlast) -> None:
    async with app:
        ready()
        await asyncio.Event().wait()


def main() -> None:
    role, store, port = sys.argv[1:]
    print(IMPORTED, flush=True)  # noqa: T201 - likewise
    sys.stdin.readline()
    if role == "serve":
        asyncio.run(serve(Outlast([talker], store=store, worker=None), int(port)))
    else:
        asyncio.run(work(Outlast([talker], store=store, worker=WorkerSettings())))


if __name__ == "__main__":
    main()
