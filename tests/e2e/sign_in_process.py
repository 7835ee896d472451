"""A worker and server in a process of its own: `python sign_in_process.py STORE PROVIDER`.

It says its port, and goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from oauth_provider import Remote
from sign_in_scene import Hub

from outlast import Outlast, WorkerSettings
from outlast.server import ServerSettings
from outlast.server.serve import listen, open_socket

SETTINGS = ServerSettings(port=0)


async def main() -> None:
    store, provider = sys.argv[1:]
    hub = Hub(Remote(int(provider)))
    with open_socket(SETTINGS) as to:
        port = to.getsockname()[1]

        def ready() -> None:
            print(port, flush=True)  # noqa: T201 - the test waits for it

        worker = WorkerSettings(poll=0.05)
        async with Outlast([hub.agent()], store=store, worker=worker, **hub.app) as app:
            await listen(app, SETTINGS, to, asyncio.Event(), ready)


if __name__ == "__main__":
    asyncio.run(main())
