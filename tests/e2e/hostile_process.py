"""A server as a process of its own, with limits on what it may take.

`python hostile_process.py '{"store": …, "settings": …, "files": …, "works": …}'` says its port, and
goes on until it is killed. With `works` it is a worker as well, as `outlast dev` is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import sys
from typing import Any

from http_scene import FAST, OUTSIDE, teller

from outlast import Outlast
from outlast.server import ServerSettings
from outlast.server.serve import listen, open_socket


async def serve(store: str, settings: ServerSettings, works: bool) -> None:
    app = Outlast([teller], store=store, public_url=OUTSIDE, worker=FAST if works else None)
    with open_socket(settings) as to:
        async with app:
            port = to.getsockname()[1]
            await listen(app, settings, to, asyncio.Event(), lambda: print(port, flush=True))  # noqa: T201


def main() -> None:
    given: dict[str, Any] = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO)
    if files := given.get("files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    settings = ServerSettings(port=0, **given.get("settings", {}))
    asyncio.run(serve(given["store"], settings, given.get("works", False)))


if __name__ == "__main__":
    main()
