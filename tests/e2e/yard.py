"""An app for tests of workers: tools that stay at work until they may go on.

Run as a user would: `outlast worker yard:app` in a directory with a copy of this file.
"""

from __future__ import annotations

import logging
import time
from datetime import timedelta
from pathlib import Path

from outlast import Agent, Context, Outlast, WorkerSettings, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say

log = logging.getLogger("yard")


@tool
def gate(ctx: Context) -> str:
    """Note each attempt in a file, and go through when another file is there."""
    log.info("at the gate")
    logging.getLogger("httpx").info("HTTP Request: POST")  # as an SDK does with every call
    with Path("attempts").open("a") as book:
        book.write(f"{ctx.attempt}\n")
    while not Path("opened").exists():
        time.sleep(0.01)
    return "through"


@tool
async def nap(ctx: Context) -> str:
    """Sleep for long."""
    await ctx.sleep(timedelta(days=1))
    return "rested"


@tool(approval="always")
async def refund(order: int) -> str:
    """Give the money back."""
    return f"gave back {order}"


def follow(request: ModelRequest) -> ScriptedReply:
    last = request.view.messages[-1]
    if not isinstance(last, UserMessage):
        return say("That is done.")
    match text_of(last.content):
        case "gate":
            return call("gate")
        case "nap":
            return call("nap")
        case "refund":
            return call("refund", order=17)
        case "busy":
            raise ScriptedError("transient", "too many requests", retry_after=3_600_000)
        case "fail":
            raise ScriptedError("recoverable", "the yard is closed")
        case "break":
            raise ScriptedError("structural", "there is no such yard")
    return say("Hello!")


guard = Agent("guard", ScriptedModel(follow), tools=[gate, nap, refund])
poet = Agent("poet", ScriptedModel([say("A rose.")]))
app = Outlast(
    agents=[guard, poet],
    worker=WorkerSettings(poll=0.05, watch=0.1, grace=30.0, stop_grace=0.1, flush=0.0),
)
