"""A worker process: imports, says so, opens the app when told to, and works until killed.

It may be told to kill itself, in the middle of a step, or of the model call of one: nobody else
would do it at that very step.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

from benchmarks.flow import flows
from benchmarks.work import boss, stepper
from outlast import Outlast, WorkerSettings


async def serve(url: str, steps: int, concurrency: int, kill_at: int, lane_cache: int) -> None:
    def die_at(step: int) -> None:
        if step == kill_at > 0:
            print("killed", time.time(), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    print("imported", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    settings = WorkerSettings(concurrency=concurrency, lane_cache=lane_cache)
    agents = [stepper(steps, on_step=die_at), boss()]
    async with Outlast([*agents, *flows(die_at)], store=url, worker=settings):
        print("open", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], *map(int, sys.argv[2:])))
