"""Random programs, edited at random while they are parked: no answer reaches another question.

A program is data that a tool interprets; an edit is what a deployment does to code. Each answer
says what it was given for, so that whoever gets it can tell.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace
from scene import agent, results_of, running

from outlast import Agent, Context, Session, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage, text_of
from outlast.errors import RequestClosed
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

WORDS = ("price", "date", "share")
NAMES = ("", "n1", "n2")
OPTIONS = ("yes", "no", "later")


class Op(Struct, frozen=True):
    """One thing that a program does: asks somebody, or does several things at once."""

    kind: str
    words: str = ""
    name: str = ""
    options: tuple[str, ...] = ()
    branches: tuple[tuple[str, tuple[Op, ...]], ...] = ()

    @property
    def prompt(self) -> str:
        return f"{self.name}|{self.words}"


def random_op(chance: Random, depth: int = 0) -> Op:
    kind = chance.choice(["ask", "ask", "ask", "agent", "step", *(["gather", "first"][depth:] * 1)])
    if kind in ("gather", "first"):
        branches = tuple(
            (chance.choice("xyz"), random_program(chance, chance.randrange(1, 3), depth + 2))
            for _ in range(chance.randrange(1, 4))
        )
        return Op(kind, branches=tuple(dict(branches).items()))
    some = tuple(chance.sample(OPTIONS, chance.randrange(1, 4))) if chance.random() < 0.5 else ()
    return Op(kind, chance.choice(WORDS), chance.choice(NAMES), some)


def random_program(chance: Random, length: int, depth: int = 0) -> tuple[Op, ...]:
    return tuple(random_op(chance, depth) for _ in range(length))


def edited(program: tuple[Op, ...], chance: Random) -> tuple[Op, ...]:
    """Return what a deployment makes of a program."""
    ops = list(program)
    place = chance.randrange(len(ops)) if ops else 0
    match chance.choice(["insert", "delete", "reorder", "rename", "reword", "options", "within"]):
        case "insert":
            ops.insert(place, random_op(chance))
        case "delete" if ops:
            del ops[place]
        case "reorder":
            chance.shuffle(ops)
        case "rename" if ops:
            ops[place] = replace(ops[place], name=chance.choice(NAMES))
        case "reword" if ops:
            ops[place] = replace(ops[place], words=chance.choice(WORDS))
        case "options" if ops:
            some = tuple(chance.sample(OPTIONS, chance.randrange(4)))
            ops[place] = replace(ops[place], options=some)
        case "within" if ops and ops[place].branches:
            branches = [(name, edited(part, chance)) for name, part in ops[place].branches]
            chance.shuffle(branches)
            ops[place] = replace(ops[place], branches=tuple(branches))
    return tuple(ops)


class Interpreter:
    """The tool: it does what the program of the moment says, and looks at every answer."""

    def __init__(self, program: tuple[Op, ...]) -> None:
        self.program = program
        self.wrong: list[str] = []

        @tool(on_interrupt="rerun")
        async def interpret(ctx: Context[Any]) -> str:
            await self.run(ctx, self.program)
            return "well"

        self.tool = interpret

    async def run(self, ctx: Context[Any], program: tuple[Op, ...]) -> None:
        for op in program:
            await self.do(ctx, op)

    async def do(self, ctx: Context[Any], op: Op) -> None:
        match op.kind:
            case "ask":
                await self.ask(ctx, op)
            case "agent":
                said = await ctx.agent("echo").ask(op.prompt, name=op.name or None)
                self.check(op, said)
            case "step":
                self.check(
                    op, await ctx.step(lambda: op.prompt, name=op.name or op.words), named=True
                )
            case "gather":
                await ctx.gather(**{name: self.run(ctx, part) for name, part in op.branches})
            case "first":
                if op.branches:
                    await ctx.first(**{name: self.run(ctx, part) for name, part in op.branches})

    async def ask(self, ctx: Context[Any], op: Op) -> None:
        answer = await ctx.ask(op.prompt, op.options, name=op.name or None)
        self.check(op, answer.prompt)
        if answer.option and answer.option not in op.options:
            self.wrong.append(f"{answer.option} is none of {op.options}")
        if not answer.option:
            self.check(op, answer.text)
            if answer.text != answer.prompt:
                self.wrong.append(f"the human saw {answer.text!r}, not {answer.prompt!r}")

    def check(self, op: Op, given_for: str, *, named: bool = False) -> None:
        """An answer to an unnamed question is for its very words, one to a name for that name."""
        name, _, words = given_for.partition("|")
        if (name != op.name and not named) or (not op.name and words != op.words):
            self.wrong.append(f"{op.prompt!r} got what was given to {given_for!r}")


def echoed(request: ModelRequest) -> ScriptedReply:
    [heard] = request.view.messages
    assert isinstance(heard, UserMessage)
    return say(text_of(heard.content))


async def until_it_rests(session: Session[Any]) -> bool:
    """Wait until nothing goes on; return whether the turn is over."""
    while True:
        if (await session.wait()).status != "waiting":
            return True
        if await session.requests():
            return False
        await asyncio.sleep(0.01)  # a child works


async def converse(store: str, seed: int) -> tuple[list[str], list[str]]:
    chance = Random(seed)
    code = Interpreter(random_program(chance, chance.randrange(2, 6)))
    boss = agent([call("interpret"), say("done")], tools=[code.tool])
    async with running(boss, Agent("echo", ScriptedModel(echoed)), store=store) as app:
        session = await app.start("a", "go")
        deployments = 15
        while not await until_it_rests(session):
            if deployments:
                deployments -= 1
                for _ in range(chance.randrange(4)):
                    code.program = edited(code.program, chance)
            requests = list(await session.requests())
            most = len(requests)
            for request in chance.sample(requests, chance.randrange(1, most + 1) if most else 0):
                option = chance.choice([*(each.id for each in request.options), ""])
                said: dict[str, Any] = {"option": option} if option else {"text": request.prompt}
                with suppress(RequestClosed):  # the answer before may have withdrawn this one
                    await session.answer(request.request_id, **said)
        assert not await verify(app.store, session.id)
        return code.wrong, await results_of(session)


@pytest.mark.parametrize("seed", range(60))
async def test_no_answer_ever_reaches_a_question_that_it_was_not_given_for(seed: int) -> None:
    wrong, [told] = await converse("memory://", seed)
    assert wrong == []
    assert told == "well" or told.startswith("UNSTABLE_WAIT")


@pytest.mark.parametrize("seed", range(60, 66))
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_nor_does_it_on_a_database(
    seed: int, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sqlite = f"sqlite:///{tmp_path}/waits.db"
    store = sqlite if database == "sqlite" else str(request.getfixturevalue("postgres_url"))
    wrong, [told] = await converse(store, seed)
    assert wrong == []
    assert told == "well" or told.startswith("UNSTABLE_WAIT")
