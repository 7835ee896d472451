"""`app.check()` and `outlast check`: new code compared with what is open, on both stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec import defstruct
from msgspec.structs import replace
from pydantic import BaseModel
from scene import FAST, running, until

from outlast import Agent, Context, Outlast, Session, Tool, tool
from outlast.agents.model.client import ModelRequest
from outlast.agents.state import slice_type
from outlast.session import CodeFinding
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


@tool(approval="always")
async def refund(ctx: Context, order_id: str, cents: int) -> str:
    """Give the money back."""
    return "refunded"


@tool(approval="always")
async def issue_refund(ctx: Context, order_id: str, cents: int) -> str:
    """Give the money back."""
    return "issued"


@tool(approval="always", aliases=["refund"])
async def heir(ctx: Context, order_id: str, cents: int) -> str:
    """Give the money back."""
    return "issued"


@tool(approval="always", name="refund")
async def refund_to(ctx: Context, order_id: str, cents: int, to: str) -> str:
    """Give the money back to somebody."""
    return "refunded"


@tool
async def find(ctx: Context) -> str:
    """Find an order."""
    return "17"


@tool
async def book(ctx: Context) -> str:
    """Book a flight."""
    return (await ctx.ask(f"It costs {90} euros. Take it?", ["yes", "no"])).option


@tool(name="book")
async def book_reworded(ctx: Context) -> str:
    """Book a flight."""
    return (await ctx.ask("May we share your data?", ["yes", "no"])).option


def says(request: ModelRequest) -> ScriptedReply:
    words = str(request.view.messages[-1])
    if "refund" in words:
        return call("refund", order_id="17", cents=500)
    return call("book") if "book" in words else say("done")


def shop(*tools: Tool[Any, Any], name: str = "shop", **options: Any) -> Agent[Any, Any]:
    return Agent(name, ScriptedModel(says), tools=tools, **options)


async def parked(app: Outlast, words: str) -> Session[Any]:
    session = await app.start("shop", words)
    await until(session, "request.opened")
    return session


async def check(store: str, *agents: Agent[Any, Any]) -> tuple[CodeFinding, ...]:
    async with Outlast(agents, store=store, worker=None) as app:
        return await app.check()


async def test_a_check_foretells_what_new_code_lacks(store: str) -> None:
    async with running(shop(refund, book, find), store=store) as app:
        ids = {(await parked(app, "refund it")).id for _ in range(2)}
        booked = await parked(app, "book it")

    assert await check(store, shop(refund, book, find)) == ()
    assert await check(store, shop(heir, book, find)) == ()

    [gone] = await check(store, shop(issue_refund, book, find))
    assert (gone.kind, gone.agent, gone.name, gone.count) == ("tool", "shop", "refund", 2)
    assert gone.text == "2 sessions of shop ask for an approval of the tool refund, which is gone"
    assert gone.remedy.startswith('add @tool(aliases=["refund"]) to issue_refund')
    assert set(gone.sessions) == ids

    [misfit] = await check(store, shop(refund_to, book, find))
    assert (misfit.kind, misfit.count) == ("arguments", 2)
    assert "refund(order_id: string, cents: integer, to: string)" in misfit.text

    [unasked] = await check(store, shop(refund, book_reworded, find))
    assert (unasked.kind, unasked.sessions) == ("wait", (booked.id,))
    assert "It costs 90 euros. Take it?" in unasked.text

    [renamed] = await check(store, shop(refund, book, name="store"))
    assert (renamed.kind, renamed.name, renamed.count) == ("agent", "shop", 3)


def booking(*questions: str) -> Tool[Any, Any]:
    @tool
    async def book(ctx: Context) -> str:
        """Book a flight."""
        return str([await said(ctx, each) for each in questions])

    return book


async def said(ctx: Context, question: str) -> str:
    return (await ctx.ask(question)).text


async def test_a_check_knows_questions_that_a_tool_has_from_elsewhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'outlast.db'}"
    async with running(shop(booking("Which seat?")), store=store) as app:
        await parked(app, "book it")

    assert await check(store, shop(booking("Which meal?", "Which seat?"))) == ()
    [unasked] = await check(store, shop(booking("Which meal?", "Which row?")))
    assert (unasked.kind, unasked.count) == ("wait", 1)


async def test_a_check_knows_questions_that_the_model_has_put_into_a_call(tmp_path: Path) -> None:
    @tool
    async def consult(ctx: Context, about: dict[str, list[str]]) -> str:
        """Ask a human."""
        return "they have said " + (await ctx.ask(about["questions"][0])).text

    asked = call("consult", about={"questions": ["Which seat?"]})
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel([asked, say("done")]), tools=[consult])
    store = f"sqlite:///{tmp_path / 'outlast.db'}"
    async with running(clerk, store=store) as app:
        await until(await app.start(clerk, "go"), "session.waiting")

    assert await check(store, clerk) == ()


async def test_a_check_foretells_state_that_cannot_be_read(store: str) -> None:
    def kept(required: bool) -> type:
        fields = [("text", str), *([("author", str)] if required else [])]
        return defstruct(f"CheckedNote{store[:6]}", fields)

    before, after = kept(required=False), kept(required=True)

    def noting(of: type) -> Agent[Any, Any]:
        @tool
        async def note(ctx: Context) -> str:
            """Note it."""
            ctx.session.mutate(before).append(before(text="x"))
            return "noted"

        script = [call("note"), say("done")]
        return Agent(
            "shop", ScriptedModel(lambda q: script[len(q.view.messages) > 1]), tools=[note]
        )

    async with running(noting(before), store=store) as app:
        await (await app.start("shop", "go")).wait()
    assert await check(store, noting(before)) == ()

    slice_type._types.pop(before)
    slice_type.type_of(after)
    [found] = await check(store, noting(after))
    slice_type._types.pop(after)
    assert found.kind == "slice"
    assert "author" in found.text
    assert "give new fields defaults" in found.remedy


async def test_a_check_foretells_another_output_type_for_open_turns(store: str) -> None:
    class Receipt(BaseModel):
        cents: int

    settings = replace(FAST, deployment="v1")
    other = Agent("other", ScriptedModel(says), tools=[refund])
    async with running(shop(refund), other, store=store, settings=settings) as app:
        session = await parked(app, "refund it")
        await until(await app.start("other", "refund it"), "request.opened")
        [info] = await app.deployments.list()
        assert {"shop", "shop.output", "shop.tool.refund"} < set(info.digests)

    assert await check(store, shop(refund), other) == ()
    [found] = await check(store, shop(refund, output_type=Receipt), other)
    assert (found.kind, found.agent, found.count) == ("output", "shop", 1)
    assert found.sessions == (session.id,)
    assert "1 session of shop have an open turn of the deployment v1" in found.text


CODE = """
from outlast import Agent, Outlast
from outlast.testing import ScriptedModel
app = Outlast([Agent("shop", ScriptedModel([]))], store="memory://")
"""


async def test_the_command_exits_with_1_and_says_what_to_do(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'outlast.db'}"
    async with running(shop(refund), store=store) as app:
        session = await parked(app, "refund it")
    (tmp_path / "newer.py").write_text(CODE)

    def run(*options: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "outlast.cli", "check", "newer:app", "--store", store, *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=os.environ,
        )
        return done.returncode, done.stdout

    code, told = run()
    assert code == 1
    assert 'which is gone: add @tool(aliases=["refund"]) to its successor' in told
    assert session.id in told
    code, told = run("--json")
    assert code == 1
    [found] = json.loads(told)["findings"]
    assert (found["kind"], found["count"]) == ("tool", 1)
