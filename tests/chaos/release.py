"""A shop in three versions of its code, and a worker of one: `python -m chaos.release … VERSION`.

`first` is what was running, `second` changes everything that sessions may be parked on, and
`mended` follows what `outlast check` says of the second.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import msgspec
from pydantic import BaseModel

from chaos.ledger import Ledger
from chaos.worker import serve_deployment
from outlast import Agent, Context, Tool, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import ToolOutputs, UserMessage, text_of
from outlast.testing import ScriptedModel, ScriptedReply, call, say

Version = Literal["first", "second", "mended"]
CASES = ("refund", "pay", "charge", "book", "survey", "delegate", "stamp")
"""The tools of the first version; each session calls one, and parks in it.

In the second, `refund` has another name and an alias, `pay` another name without one, `charge` one
more argument, `book` one more question before its own, `survey` another question, `delegate` asks
an agent that was renamed, and the output of who calls `stamp` is of another type.
"""


class Stamp(BaseModel):
    item: str


class DatedStamp(BaseModel):
    item: str
    day: int = 0


def agents_of(version: str, ledger: Ledger) -> list[Agent[Any, Any]]:
    is_second = version == "second"
    stamped = Stamp if version == "first" else DatedStamp
    tools = {"first": first_tools, "second": second_tools, "mended": mended_tools}[version]
    names = ["assistant"] if is_second else ["helper"]
    names += ["assistant"] if version == "mended" else []
    return [
        Agent("shop", ScriptedModel(does_as_told), tools=tools(ledger)),
        Agent(
            "clerk",
            ScriptedModel(does_as_told),
            tools=[effect(ledger, "stamp")],
            output_type=stamped,
        ),
        *(Agent(name, ScriptedModel(does_as_told), tools=[colour(ledger)]) for name in names),
    ]


def does_as_told(request: ModelRequest) -> ScriptedReply:
    """Call the tool that the message names, and say what came of it."""
    [first, *_] = [m for m in request.view.messages if isinstance(m, UserMessage)]
    wanted = msgspec.json.decode(text_of(first.content))
    if not any(isinstance(m, ToolOutputs) for m in request.view.messages):
        return call(wanted["tool"], item=wanted["item"])
    if wanted["tool"] == "stamp":
        return call("final_result", item=wanted["item"])
    last = request.view.messages[-1]
    assert isinstance(last, ToolOutputs), last
    return say("; ".join(result.text for result in last.results))


# Tools


def effect(ledger: Ledger, name: str, *aliases: str) -> Tool[Any, Any]:
    """A tool that a human has to allow, and that is done once."""

    async def done(ctx: Context[Any], item: str) -> str:
        ledger.mark("did", call=ctx.call_id, session=ctx.session.id, tool=name, key=item)
        return f"did {item}"

    return tool(name=name, aliases=aliases, approval="always")(done)


def effect_to(ledger: Ledger) -> Tool[Any, Any]:
    @tool(approval="always")
    async def charge(ctx: Context[Any], item: str, to: str) -> str:
        ledger.mark("did", call=ctx.call_id, session=ctx.session.id, tool="charge", key=item)
        return f"did {item}"

    return charge


def colour(ledger: Ledger) -> Tool[Any, Any]:
    @tool(idempotent=True)
    async def colour(ctx: Context[Any], item: str) -> str:
        return await hear(ctx, ledger, f"Which colour has {item}?")

    return colour


async def hear(ctx: Context[Any], ledger: Ledger, question: str) -> str:
    """Ask, and note which question the answer was given to."""
    answer = await ctx.ask(question)
    heard = msgspec.json.encode([question, answer.prompt, answer.text]).decode()
    ledger.mark("heard", call=ctx.call_id, session=ctx.session.id, key=heard)
    return answer.text


def asking(ledger: Ledger, question: str) -> Tool[Any, Any]:
    @tool(idempotent=True)
    async def survey(ctx: Context[Any], item: str) -> str:
        return await hear(ctx, ledger, question)

    return survey


def booking(ledger: Ledger, *questions: str) -> Tool[Any, Any]:
    @tool(idempotent=True)
    async def book(ctx: Context[Any], item: str) -> str:
        return " and ".join([await hear(ctx, ledger, question) for question in questions])

    return book


def delegating(name: str) -> Tool[Any, Any]:
    @tool(idempotent=True)
    async def delegate(ctx: Context[Any], item: str) -> str:
        wanted = msgspec.json.encode({"tool": "colour", "item": item}).decode()
        return f"{await ctx.agent(name).ask(wanted)}"

    return delegate


def first_tools(ledger: Ledger) -> list[Tool[Any, Any]]:
    effects = [effect(ledger, name) for name in ("refund", "pay", "charge")]
    return [
        *effects,
        booking(ledger, "Which seat?"),
        asking(ledger, "Did you like it?"),
        delegating("helper"),
    ]


def second_tools(ledger: Ledger) -> list[Tool[Any, Any]]:
    return [
        effect(ledger, "issue_refund", "refund"),
        effect(ledger, "settle"),
        effect_to(ledger),
        booking(ledger, "Which meal?", "Which seat?"),
        asking(ledger, "Would others have this, too?"),
        delegating("assistant"),
    ]


def mended_tools(ledger: Ledger) -> list[Tool[Any, Any]]:
    """Those of the second version, with what `outlast check` says of them."""

    @tool(approval="always")
    async def charge(ctx: Context[Any], item: str, to: str = "") -> str:
        ledger.mark("did", call=ctx.call_id, session=ctx.session.id, tool="charge", key=item)
        return f"did {item}"

    return [
        effect(ledger, "issue_refund", "refund"),
        effect(ledger, "settle", "pay"),
        charge,
        booking(ledger, "Which meal?", "Which seat?"),
        asking(ledger, "Did you like it?"),
        delegating("helper"),
    ]


if __name__ == "__main__":
    serve_deployment(sys.argv[1:], agents_of)
