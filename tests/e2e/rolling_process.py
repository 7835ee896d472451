"""A worker of some release as a process of its own: `python rolling_process.py STORE`.

It does what it reads, a line of JSON each, and answers with one: start a session, say something in
one, read it, verify all. Which Outlast that is, the caller says with PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from outlast import Agent, Context, Outlast, WorkerSettings, tool
from outlast.core.record import FORMAT
from outlast.errors import StoreFromTheFuture
from outlast.log.verify import verify
from outlast.testing import ScriptedModel, call, say


@tool
async def note(ctx: Context, text: str) -> str:
    """Note it."""
    return f"noted by format {FORMAT}"


def reply(request: Any) -> Any:
    """Take a note of each message, and say what came of it."""
    last = str(request.view.messages[-1])
    return say("done") if "noted" in last else call("note", text="it")


async def answer(app: Outlast, wanted: dict[str, str]) -> Any:
    match wanted["do"]:
        case "start":
            session = await app.start("a", "begin")
            await session.wait()
            return session.id
        case "say":
            session = await app.session(wanted["id"])
            receipt = await session.send("again")
            return (await receipt.result()).output
        case "send":
            await (await app.session(wanted["id"])).send("again")
            return "sent"
        case "read":
            return len(await (await app.session(wanted["id"])).history())
        case "status":
            return (await (await app.session(wanted["id"])).info()).status
        case "verify":
            found = await app.store.listing.sessions(limit=100)
            return [str(e) for info in found for e in await verify(app.store, info.session_id)]
    raise AssertionError(wanted)


async def main() -> None:
    loop = asyncio.get_running_loop()
    agent = Agent("a", ScriptedModel(reply), tools=[note])
    async with Outlast([agent], store=sys.argv[1], worker=WorkerSettings(poll=0.1)) as app:
        print(FORMAT, flush=True)  # noqa: T201 - the test waits for it
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            try:
                said = await answer(app, json.loads(line))
            except StoreFromTheFuture as error:
                said = error.message
            print(json.dumps(said), flush=True)  # noqa: T201 - likewise


if __name__ == "__main__":
    asyncio.run(main())
