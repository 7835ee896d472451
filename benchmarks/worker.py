"""A worker process: imports, says so, opens the app when told to, and works until killed."""

from __future__ import annotations

import asyncio
import sys

from benchmarks.work import boss, stepper
from holdfast import Holdfast, WorkerSettings


async def serve(url: str, steps: int, concurrency: int) -> None:
    print("imported", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    settings = WorkerSettings(concurrency=concurrency)
    async with Holdfast([stepper(steps), boss()], store=url, worker=settings):
        print("open", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
