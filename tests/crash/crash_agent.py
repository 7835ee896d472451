"""The agents of the crash tests: every manner of tool, every way of waiting."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

from crash_book import Book
from crash_endless import endless
from crash_family import family
from crash_gate import block_until_open, until_open
from crash_model import obedient, scripted
from crash_planner import planning
from crash_ruled import deadly_rule, ruled
from crash_signer import signer
from crash_timer import patient

from outlast import Agent, Context, Limits, NotDone, Tool, tool
from outlast.testing import ScriptedError, ScriptedReply, calls, say

ANSWER = "The trip is booked, the parcel is on its way and the money was given back."
SHORT_ANSWER = "Paid and noted, as you wished."
SPEECH = " ".join(f"word{number}" for number in range(60))
THANKS = "You are welcome."
MAX_DEATHS = 3
BUSY = ScriptedError("transient", "the provider is busy", retry_after=20)
REJECTED = ScriptedError("blocked", "the key is wrong", retry_after=20)


BOOK = Book("")
"""That of this process, once `agents_writing_to` has said which that is."""


def agents_writing_to(path: str | Path) -> list[Agent[Any, Any]]:
    """Return the agents of a process that works, and writes to one book."""
    assert BOOK.path in ("", str(path)), "a process has one book"
    BOOK.path = str(path)
    return agents()


@cache
def agents() -> list[Agent[Any, Any]]:
    """Return all of them; they write to the process's book whatever they do.

    They are made once, before a process forks those that work: to make them costs more than what
    most of these do before they are killed.
    """
    book = BOOK
    return [
        travel("travel", book, all_rerun=False),
        travel("rerunner", book, all_rerun=True),
        errand(book),
        slow_tool("slow", book),
        slow_tool("impatient", book, max_attempts=1),
        talker("talker", book),
        talker("hasty", book, max_attempts=1),
        parent(book),
        *family(book),
        patient(book),
        signer(book),
        deadly(book),
        reader(book),
        refused(book),
        racer(book),
        ruled(book),
        deadly_rule(book),
        endless(book),
        planning(book),
    ]


# Those that cost workers


def deadly(book: Book) -> Agent[Any, Any]:
    """A readonly tool that takes its worker down, every time."""

    @tool(readonly=True)
    async def explode(ctx: Context[Any]) -> str:
        book.begin(ctx)
        os.kill(os.getpid(), signal.SIGKILL)
        return "nobody gets here"

    model = scripted("deadly", book, calls(("explode", {})), say("It is done."))
    return Agent("deadly", model, tools=[explode], limits=Limits(max_crashes=MAX_DEATHS))


def reader(book: Book) -> Agent[Any, Any]:
    """Says one thing about whatever it is given to read."""
    model = scripted("reader", book, *[say("I have read it.")] * 9)
    return Agent("reader", model, limits=Limits(max_crashes=MAX_DEATHS))


def refused(book: Book) -> Agent[Any, Any]:
    """Is refused by its provider for a while, as with a wrong key that somebody mends."""
    reply = ScriptedReply(text=THANKS, fails=(REJECTED,) * 3)
    return Agent("refused", scripted("refused", book, reply))


# The big scenario


def travel(name: str, book: Book, *, all_rerun: bool) -> Agent[Any, Any]:
    """Parallel tools, a failing provider, an approval, a question, a stream, a follow-up."""
    model = scripted(
        name,
        book,
        ScriptedReply(
            calls=(
                ("look", {"city": "Oslo"}),
                ("pay", {"cents": 1200}),
                ("note", {"text": "window seat"}),
                ("reserve", {"seat": "7A"}),
                ("ship", {"parcel": "skis"}),
            ),
            fails=(BUSY,),
        ),
        calls(("refund", {"cents": 300}), ("consult", {"question": "Breakfast?"})),
        say(ANSWER, chunks=5, pace=0.05),
        say(THANKS),
    )
    return Agent(name, model, tools=travel_tools(book, all_rerun))


def travel_tools(book: Book, all_rerun: bool) -> list[Tool]:
    unsaid: dict[str, Any] = {"on_interrupt": "rerun"} if all_rerun else {}

    def find_parcel(ctx: Context[Any], args: dict[str, Any]) -> Any:
        """Ask the outside world whether the parcel has left."""
        left = f"shipped {args['parcel']}" in book.effects()
        return "shipped" if left else NotDone

    @tool(readonly=True)
    async def look(ctx: Context[Any], city: str) -> str:
        book.begin(ctx)
        return f"sunny in {city}"

    @tool(**unsaid)
    async def pay(ctx: Context[Any], cents: int) -> str:
        book.begin(ctx)
        book.effect(f"paid {cents}")
        await asyncio.sleep(0.01)
        return "paid"

    @tool(idempotent=True)
    def note(ctx: Context[Any], text: str) -> str:
        book.begin(ctx)
        book.effect(f"noted {text} under {ctx.idempotency_key}")
        return "noted"

    @tool(transactional=True)
    async def reserve(ctx: Context[Any], seat: str) -> str:
        book.begin(ctx)
        await asyncio.sleep(0.03)
        await ctx.tx.execute("CREATE TABLE IF NOT EXISTS seats (seat TEXT)")
        await ctx.tx.execute("INSERT INTO seats VALUES (?)", (seat,))
        return "reserved"

    @tool(on_interrupt="rerun" if all_rerun else find_parcel)
    async def ship(ctx: Context[Any], parcel: str) -> str:
        book.begin(ctx)
        await asyncio.sleep(0.05)
        book.effect(f"shipped {parcel}")
        return "shipped"

    @tool(approval="always", **unsaid)
    async def refund(ctx: Context[Any], cents: int) -> str:
        book.begin(ctx)
        book.effect(f"refunded {cents}")
        return "refunded"

    @tool(idempotent=True)
    async def consult(ctx: Context[Any], question: str) -> str:
        book.begin(ctx)
        await ctx.step(book.effect, "looked up", name="look up")
        answer = await ctx.ask(question)
        return f"looked it up; the answer was {answer.text}"

    return [look, pay, note, reserve, ship, refund, consult]


# The small ones


def errand(book: Book) -> Agent[Any, Any]:
    """Two tools at once, one that must not be repeated, and a streamed answer."""

    @tool
    async def pay(ctx: Context[Any], cents: int) -> str:
        book.begin(ctx)
        book.effect(f"paid {cents}")
        return "paid"

    @tool(idempotent=True)
    async def note(ctx: Context[Any], text: str) -> str:
        book.begin(ctx)
        await asyncio.sleep(0.01)
        return "noted"

    model = scripted(
        "errand",
        book,
        calls(("pay", {"cents": 5}), ("note", {"text": "milk"})),
        say(SHORT_ANSWER, chunks=2, pace=0.02),
    )
    return Agent("errand", model, tools=[pay, note])


def racer(book: Book) -> Agent[Any, Any]:
    """Takes the first of two answers, and is run once more after that."""

    @tool(idempotent=True)
    async def race(ctx: Context[Any]) -> str:
        book.begin(ctx)
        # Listed first, it would come first in a later run that knows both answers.
        came = await ctx.first(
            other=ctx.ask("Or that?", ["yes"]), taken=ctx.ask("Take it?", ["yes"])
        )
        book.effect(f"won {came.name}")
        await ctx.ask("Sure?", ["yes"])
        return came.name

    return Agent("racer", scripted("racer", book, calls(("race", {})), say("Done.")), tools=[race])


def slow_tool(name: str, book: Book, *, max_attempts: int = 10) -> Agent[Any, Any]:
    """Tools whose first attempt waits at a gate: the message says which tool and which gate."""

    async def wait(ctx: Context[Any], gate: str) -> str:
        book.begin(ctx)
        book.effect(f"began {ctx.tool}")
        await ctx.heartbeat("begun")
        if ctx.attempt == 1:
            await until_open(gate)
        return "done"

    tools = [Tool(wait, name="careful"), Tool(wait, name="repeatable", idempotent=True)]
    return Agent(name, obedient(name, book), tools=tools, limits=Limits(max_crashes=max_attempts))


def talker(name: str, book: Book, *, max_attempts: int = 10) -> Agent[Any, Any]:
    """A long streamed answer, and nothing else."""
    model = scripted(name, book, say(SPEECH, chunks=40, pace=0.02))
    return Agent(name, model, limits=Limits(max_crashes=max_attempts))


def parent(book: Book) -> Agent[Any, Any]:
    """A tool that forks a child which outlives it."""

    @tool(idempotent=True)
    async def beget(ctx: Context[Any], gate: str) -> str:
        book.begin(ctx)
        if ctx.attempt > 1:
            return "done at last"
        if os.fork() == 0:
            book.effect(f"child {os.getpid()}")
            block_until_open(gate)
            os._exit(0)
        await ctx.heartbeat("begotten")
        await until_open(gate)
        return "done at once"

    return Agent("parent", obedient("parent", book), tools=[beget])
