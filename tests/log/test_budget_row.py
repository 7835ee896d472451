"""Rows of budgets that say something else than the logs: calls are let in by these rows."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from log.test_snapshot import run
from scene import FAST
from typer.testing import CliRunner

from outlast import Agent, Budget, Context, Outlast, tool
from outlast.cli import make_app
from outlast.core.amount import BudgetKey
from outlast.log.verify import verify, verify_budgets
from outlast.testing.scripted import ScriptedModel, call, say

MUCH = Budget(tokens=1_000_000)
SCOPES = ("session", "tenant", "tenant of the day", "principal", "principal of the day")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


def counting(url: str) -> Outlast:
    agent = Agent("a", ScriptedModel(lambda _: say("one")), budget=MUCH)
    return Outlast([agent], store=url, worker=FAST)


async def spent(url: str) -> str:
    """Let a session spend something of all kinds of budgets."""
    async with counting(url) as app:
        for principal in ("", "ada"):
            await app.budgets.set(MUCH, principal=principal)
            await app.budgets.set(MUCH, principal=principal, per="day")
    async with counting(url) as app:  # whose worker knows them
        session = await app.start("a", "go", principal="ada")
        await session.wait()
        assert await verify(app.store, session.id) == []
        assert await verify_budgets(app.store) == []
    return session.id


def where(scope: str) -> str:
    kind, _, daily = scope.partition(" ")
    return f"scope = '{kind}' AND day {'> 0' if daily else '= 0'}"


def damage(url: str, scope: str, column: str) -> None:
    is_sqlite = url.startswith("sqlite")
    text = "[7,0,0,0,0,0]" if is_sqlite else "{7,0,0,0,0,0}"
    change = f"UPDATE {{}}budgets SET {column} = '{text}' WHERE {where(scope)} RETURNING who"  # noqa: S608 - ours
    assert len(run(url, change)) == 1


def told(url: str, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(make_app(), ["verify", "--store", url, *options])
    return result.exit_code, result.output


@pytest.mark.parametrize("column", ["reserved", "spent"])
@pytest.mark.parametrize("scope", SCOPES)
def test_it_is_told_and_mended(url: str, scope: str, column: str) -> None:
    session_id = asyncio.run(spent(url))
    damage(url, scope, column)
    code, output = told(url)
    assert code == 1
    assert output.count("BUDGET_ROW") == 1
    assert f"7 tokens is {column}; by the logs it is" in output.replace("\n", " ")
    assert (session_id if scope == "session" else "budgets:") in output
    code, output = told(url, "--repair")
    assert (code, "1 budget added up anew" in output) == (0, True)
    assert told(url)[0] == 0


@pytest.mark.parametrize("scope", SCOPES)
def test_one_that_is_gone_is_told_and_made_anew(url: str, scope: str) -> None:
    asyncio.run(spent(url))
    run(url, f"DELETE FROM {{}}budgets WHERE {where(scope)}")  # noqa: S608 - ours
    assert told(url)[0] == 1
    assert told(url, "--repair")[0] == 0
    assert told(url)[0] == 0


def test_it_is_not_mended_by_uses_that_are_wrong_themselves(url: str) -> None:
    session_id = asyncio.run(spent(url))
    is_sqlite = url.startswith("sqlite")
    text = "[7,0,0,0,0,0]" if is_sqlite else "{7,0,0,0,0,0}"
    run(url, f"UPDATE {{}}budget_uses SET spent = '{text}' WHERE scope = 'tenant'")  # noqa: S608
    code, output = told(url, "--repair")
    assert code == 1
    assert "BUDGET_INDEX" in output
    assert "BUDGET_ROW" in output
    assert "added up anew" not in output
    assert session_id in output


async def test_a_budget_of_a_session_whose_row_was_made_anew_has_its_terms_again(url: str) -> None:
    session_id = await spent(url)
    run(url, "DELETE FROM {}budgets WHERE scope = 'session'")
    async with counting(url) as app:
        assert await app.store.budget.balance_budgets() == 1
        session = await app.session(session_id)
        await (await session.send("more")).result()
        key = BudgetKey("session", session_id)
        [state] = await app.store.budget.find_budgets("default", [key])
        assert state.terms.limits.tokens == 1_000_000
        assert state.spent.model_calls == 2
        assert await verify(app.store, session_id) == []


async def test_a_share_that_is_kept_for_a_child_that_is_over_is_told(url: str) -> None:
    @tool
    async def confirm(ctx: Context) -> str:
        """Ask a human."""
        return str((await ctx.ask("Sure?")).text)

    clerk = Agent("clerk", ScriptedModel([call("confirm"), say("Shipped.")]), tools=[confirm])
    script = [call("clerk", message="Where is it?"), say("On its way.")]
    desk = Agent("desk", ScriptedModel(script), subagents=[clerk], budget=MUCH)
    async with Outlast([desk, clerk], store=url, worker=FAST) as app:
        session = await app.start(desk, "go")
        await session.wait()
        assert await verify(app.store, session.id) == []  # the child is at work
        [child] = [info for info in await app.sessions() if info.parent]
        run(url, "UPDATE {}sessions SET over = 'completed' WHERE id = :id", id=child.session_id)
        findings = await verify(app.store, session.id)
    assert "LEFT_RESERVED" in [each.code for each in findings]
