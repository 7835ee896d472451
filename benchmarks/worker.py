"""A worker process: imports, says so, opens the app when told to, and works until killed."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.work import asker, stepper
from holdfast import Holdfast


async def serve(database: str) -> None:
    print("imported", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    async with Holdfast([stepper(), asker()], store=f"sqlite:///{database}"):
        print("open", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
