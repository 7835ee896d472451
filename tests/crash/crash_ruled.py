"""Agents with rules: one that heeds them all, and those whose own code takes their worker down."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crash_book import Book
from crash_model import scripted

from outlast import Agent, Context, Limits, tool
from outlast.rules import Every, SequentialDependency, TurnContext, completion, feedback
from outlast.state import reducer, slice_type
from outlast.testing import calls, say

MAX_DEATHS = 3


@slice_type("crash.weight")
@dataclass(frozen=True)
class Weight:
    """State of a session."""

    grams: int


@dataclass(frozen=True)
class Weighed:
    """An event whose reducer takes its worker down."""

    grams: int


@reducer(Weight, Weighed)
def explode(weights: Sequence[Weight], event: Weighed) -> Sequence[Weight]:
    os.kill(os.getpid(), signal.SIGKILL)
    return weights


def ruled(book: Book) -> Agent[Any, Any]:
    """Has a call refused, is told something, and may not end when it first wants to."""

    @tool(idempotent=True)
    async def note(ctx: Context[Any], text: str) -> str:
        book.begin(ctx)
        book.effect(f"noted {text} under {ctx.idempotency_key}")
        return "noted"

    @tool(on_interrupt="rerun")
    async def pay(ctx: Context[Any], cents: int) -> str:
        book.begin(ctx)
        book.effect(f"paid {cents}")
        return "paid"

    @feedback(every=Every(calls=2))
    def hurry(turn: TurnContext) -> str | None:
        return f"{turn.calls} calls so far"

    @feedback(every=Every(calls=1))
    async def quiet(turn: TurnContext) -> str | None:
        return None

    @completion
    def is_paid(turn: TurnContext) -> str | None:
        return None if "pay" in turn.succeeded else "nothing was paid"

    model = scripted(
        "ruled",
        book,
        calls(("pay", {"cents": 5})),
        calls(("note", {"text": "milk"})),
        say("Noted."),
        calls(("pay", {"cents": 5})),
        say("Noted and paid.", chunks=2, pace=0.02),
    )
    rules = [SequentialDependency(tool="pay", after="note")]
    return Agent("ruled", model, tools=[note, pay], rules=[*rules, hurry, quiet, is_paid])


def deadly_rule(book: Book) -> Agent[Any, Any]:
    """Its checker takes its worker down, every time."""

    @completion
    async def explode(turn: TurnContext) -> str | None:
        book.start("deadly_rule", turn.turn, turn.step)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    model = scripted("deadly_rule", book, say("It is done."))
    return Agent("deadly_rule", model, rules=[explode], limits=Limits(max_crashes=MAX_DEATHS))
