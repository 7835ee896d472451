"""A batch of 50 documents as a workflow: its worker is killed in the middle, and it goes on.

Each document is a branch of `ctx.map`, known by its item; a document that was read is not read
again. The progress is in the run's stream, also for a reader that comes back later.
"""

import asyncio
import os
import signal
import subprocess
import sys

from outlast import Outlast, WorkflowContext, workflow

DOCS = [f"document {number}" for number in range(1, 51)]
READ = "read.txt"


async def read(doc: str) -> int:
    await asyncio.sleep(0.02)
    with open(READ, "a") as book:  # noqa: ASYNC230 - a line for each document that was really read
        book.write(f"{doc}\n")
    return len(doc)


@workflow
async def batch(ctx: WorkflowContext, docs: list[str]) -> int:
    async def one(doc: str) -> int:
        return await ctx.step(read, doc, on_interrupt="rerun")

    return sum(await ctx.map(one, docs, concurrency=8))


async def work() -> None:
    """Be a worker until somebody kills this process."""
    async with Outlast([batch], store="sqlite:///batch.db"):
        await asyncio.Event().wait()


async def main() -> None:
    workers = [subprocess.Popen([sys.executable, __file__, "work"])]  # noqa: ASYNC220, S603
    async with Outlast([batch], store="sqlite:///batch.db", worker=None) as app:
        run = await app.run(batch, DOCS, dispatch_id=f"batch {os.getpid()}")
        async for event in run.events():
            if event.type == "tool.progress":
                done, total = event.data["progress"]["done"], event.data["progress"]["total"]
                print(f"[{'#' * (done // 2):25}] {done}/{total}")
                if done > 15 and len(workers) == 1:
                    workers[0].send_signal(signal.SIGKILL)
                    workers.append(subprocess.Popen([sys.executable, __file__, "work"]))  # noqa: ASYNC220, S603
        print("characters read:", (await run.wait()).unwrap())
    for worker in workers:
        worker.kill()
        worker.wait()


asyncio.run(work() if "work" in sys.argv else main())
