"""An app for tests of the command line: a shop whose model follows what it is told.

Run as a user would: `outlast chat shop:app` in a directory with a copy of this file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import BaseModel

from outlast import Agent, Context, Outlast, WorkerSettings, ask_question, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, calls, say


class Note(BaseModel):
    text: str


@tool(readonly=True)
async def find_order(customer: str) -> dict[str, int]:
    """Find a customer's order."""
    return {"order": 17, "cents": 500}


@tool(approval="always")
async def refund(order: int, cents: int) -> str:
    """Give the money back."""
    return f"gave back {cents} for {order}"


@tool(approval="always")
async def note(text: str) -> str:
    """Keep a note."""
    return "kept"


@tool
async def wait_for_ever() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


@tool(readonly=True)
async def read_book(ctx: Context) -> str:
    """Return more than fits into the log itself."""
    ctx.session.mutate(Note).append(Note(text="read a book"))
    return "words " * 20_000


def follow(request: ModelRequest) -> ScriptedReply:
    last = request.view.messages[-1]
    if not isinstance(last, UserMessage):
        return say("That is done.", chunks=3, pace=0.02)
    text = text_of(last.content)
    match text.partition(" ")[0]:
        case "find":
            return call("find_order", customer="Ada")
        case "refund":
            return calls(("refund", {"order": 17, "cents": 500}), text="Let me see.")
        case "two":
            return calls(*(("refund", {"order": n, "cents": 500}) for n in (1, 2)))
        case "ask":
            return call("ask_question", question="Which colour?", options=["red", "blue"])
        case "note":
            return call("note", text="words " * 800 + "end of the note")
        case "hang":
            return call("wait_for_ever")
        case "read":
            return call("read_book")
        case "fail" if not Path("mended").exists():
            raise ScriptedError("recoverable", "the shop is closed")
        case "break":
            raise ScriptedError("structural", "there is no such shop")
    return say(f"You said: {text}", chunks=4, pace=0.02)


support = Agent(
    "support",
    ScriptedModel(follow),
    tools=[find_order, refund, note, wait_for_ever, read_book, ask_question],
)
FAST = WorkerSettings(poll=0.05, watch=0.1, grace=0.1, stop_grace=0.1, flush=0.0)
app = Outlast(agents=[support], worker=FAST)
