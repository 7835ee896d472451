"""A queue bounds what runs at once, and an operator changes that while all runs."""

import asyncio

from outlast import Agent, Context, Outlast, QueueEntry, tool
from outlast.testing import ScriptedModel, call, say

at_once = most = 0


@tool(idempotent=True)
async def write_report(ctx: Context) -> str:
    """Write a report; it takes a while."""
    global at_once, most
    at_once += 1
    most = max(most, at_once)
    await asyncio.sleep(0.1)
    at_once -= 1
    return "42 pages"


writer = Agent("writer", ScriptedModel([call("write_report"), say("Done.")]), tools=[write_report])


async def write(app: Outlast, count: int, key: str) -> int:
    """Have some reports written; return how many were under way at once."""
    global most
    most = 0
    place = QueueEntry("reports", key=key)
    sessions = [
        await app.start(writer, f"Report {number}", mode="task", queue=place)
        for number in range(count)
    ]
    assert [(await session.wait()).unwrap() for session in sessions] == ["Done."] * count
    return most


async def main() -> None:
    async with Outlast([writer], store="sqlite:///queues.db") as app:
        await app.queues.set("reports", concurrency=2)
        assert await write(app, 6, "acme") <= 2
        print("two at once")

        await app.queues.set("reports", concurrency=10, per_key=1)  # this holds at once
        assert await write(app, 4, "acme") == 1
        print("one at once for each customer")

        queue = await app.queues.get("reports")
        print(queue.settings.concurrency, queue.running, queue.waiting)


asyncio.run(main())
