"""A worker process of the demo: `python -m outlast.cli.demo.worker DIRECTORY NAME`.

Works until it is killed, or until whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from outlast.cli.demo.story import make_app

READY = "ready"


async def work(directory: Path, name: str) -> None:
    async with make_app(directory, name):
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.buffer.read)  # ends with the process that started us


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=f"{sys.argv[2]} %(levelname)s %(message)s")
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2]))
