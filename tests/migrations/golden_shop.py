"""The sessions of the golden databases: the code that left them open, and how they go on.

Every release has to carry on what an older one left, so this may be added to, and nothing in it
may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import BaseModel

from outlast import (
    Agent,
    Context,
    Outlast,
    QueueEntry,
    Tool,
    WorkerSettings,
    WorkflowContext,
    tool,
    workflow,
)
from outlast.agents.model.client import ModelRequest
from outlast.core.message import ToolOutputs, UserMessage, text_of
from outlast.log.verify import verify
from outlast.testing import ScriptedModel, ScriptedReply, call, say

WORKER = WorkerSettings(poll=0.05, watch=0.05, rest=0.05, deployment="golden-1", flush=0.0)
LONG = "a long message " * 5_000
"""So long that it is kept beside the log."""


class Note(BaseModel):
    text: str


@tool(approval="always")
async def refund(ctx: Context, cents: int) -> str:
    """Give the money back."""
    return f"gave {cents} back"


@tool(idempotent=True)
async def ask(ctx: Context) -> str:
    """Ask for a date."""
    return f"on {(await ctx.ask('When?', ['Monday', 'Friday'])).option}"


@tool(idempotent=True)
async def delegate(ctx: Context) -> str:
    """Have a clerk ask."""
    return f"the clerk says: {await ctx.agent('clerk').ask('ask')}"


@tool(idempotent=True)
async def note(ctx: Context, text: str) -> str:
    """Keep a note."""
    ctx.session.mutate(Note).append(Note(text=text))
    return "noted"


@workflow
async def report(ctx: WorkflowContext, month: str) -> str:
    """Make a report when somebody has agreed."""
    found = await ctx.step(count, month, name="count")
    agreed = await ctx.ask(f"Send {found}?", ["yes", "no"], name="send")
    return f"{found}: {agreed.option}"


def count(month: str) -> str:
    return f"12 orders in {month}"


def does_as_told(request: ModelRequest) -> ScriptedReply:
    """Do what the last message names; then say what came of it."""
    last = request.view.messages[-1]
    if isinstance(last, ToolOutputs):
        return say("; ".join(result.text for result in last.results))
    [*_, message] = [m for m in request.view.messages if isinstance(m, UserMessage)]
    text = text_of(message.content)
    match text.split(" ")[0]:
        case "refund":
            return call("refund", cents=500)
        case "ask" | "delegate" as name:
            return call(name)
        case "note":
            return call("note", text=text)
        case "fail":
            raise ValueError("this model cannot answer")
    return say(f"heard {len(text)} characters")


def golden_app(store: str, *, works: bool = True) -> Outlast:
    tools: list[Tool[Any, Any]] = [refund, ask, delegate, note]
    shop = Agent("shop", ScriptedModel(does_as_told), tools=tools)
    clerk = Agent("clerk", ScriptedModel(does_as_told), tools=[ask])
    return Outlast([shop, clerk, report], store=store, worker=WORKER if works else None)


NAMES = ("refund it", "ask", "delegate", "note this", LONG, "fail")


async def leave(store: str) -> None:
    """Leave sessions behind: parked ones, one that is at rest, and one with a message waiting."""
    async with golden_app(store) as app:
        await app.queues.set("reports", concurrency=2, per_key=1)
        for number, text in enumerate(NAMES):
            session = await app.start(
                "shop",
                text,
                dispatch_id=f"golden-{number}",
                continuation_token=f"golden token {number} of a shop",
                tags={"customer": str(number)},
                queue=None if number else QueueEntry("reports", key="acme"),
            )
            await session.wait()
        run = await app.run(report, "May", dispatch_id="golden-run")
        await run.wait()
    async with golden_app(store, works=False) as app:
        [info] = await app.sessions(tags={"customer": "3"})
        await (await app.session(info.session_id)).send("hello", dispatch_id="golden-late")


async def look(app: Outlast) -> list[dict[str, Any]]:
    """Return what readers and lists have of all sessions, oldest first, without what may vary."""
    found = []
    for info in sorted(await app.store.listing.sessions(limit=100), key=lambda i: i.session_id):
        session = await app.session(info.session_id)
        history = msgspec.to_builtins(await session.history(), builtin_types=())
        found.append(
            {
                "id": info.session_id,
                "agent": info.agent,
                "status": info.status,
                "tags": dict(info.tags),
                "events": [event.type async for event in session.events(follow=False)],
                "history": [shortened(message) for message in history],
                "requests": [request.prompt for request in await session.requests()],
                "notes": [kept.text for kept in await session.query(Note).all()],
            }
        )
    return found


def shortened(message: Any) -> Any:
    text = msgspec.json.encode(message).decode()
    return text if len(text) < 1000 else f"{text[:80]} … {len(text)}"


async def faults(app: Outlast) -> list[str]:
    ids = [info.session_id for info in await app.store.listing.sessions(limit=100)]
    return [str(each) for session_id in ids for each in await verify(app.store, session_id)]


async def go_on(app: Outlast, ids: Sequence[str]) -> list[Any]:
    """Answer all that is open until every session rests; return what each came to."""
    outputs = []
    for session_id in ids:
        session = await app.session(session_id)
        while (result := await session.wait(timeout=30)).requests:
            for request in result.requests:
                await session.answer(request.request_id, request.options[0].id)
        outputs.append(result.output if result.status == "completed" else result.status)
    return outputs
