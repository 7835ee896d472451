"""Budgets as others see and set them: over HTTP, with the client, at a terminal, from sync code."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from client_scene import far_away
from http_scene import on_a_socket, scene
from remote_scene import the
from terminal import Place

from outlast import Agent, Budget, Client, Limits, Outlast
from outlast.agents.model.pydantic_ai import ProviderModel
from outlast.core.result import Usage
from outlast.errors import BudgetChanged, InvalidDefinition
from outlast.sync import opened
from outlast.testing.provider_server import WireServer, openai_model, reply, words
from outlast.testing.scripted import ScriptedModel, say


async def test_a_server_sets_and_lists_the_budgets_of_its_callers_tenant() -> None:
    async with scene() as bank, bank.caller() as caller:
        await bank.app.budgets.set(Budget(steps=1), tenant="zoo")
        body = {"per": "day", "budget": {"usd": "2.50", "wall_time": 1.5}, "expected": 0}
        one = (await caller.ask("PUT", "/budgets", json=body))["budget"]
        of_ada = {"principal": "ada", "budget": {"tokens": 1000, "on_end": "fail"}}
        await caller.ask("PUT", "/budgets", json=of_ada)

        assert (one["per"], one["budget"]["usd"], one["budget"]["wall_time"]) == ("day", "2.5", 1.5)
        assert one["spent"]["usd"] == one["reserved"]["usd"] == "0"
        page = await caller.ask("GET", "/budgets?limit=1")
        rest = await caller.ask("GET", f"/budgets?cursor={page['next_cursor']}")
        assert [each["principal"] for each in (*page["budgets"], *rest["budgets"])] == ["ada", ""]
        assert await caller.refused("PUT", "/budgets", 409, json=body) == "BUDGET_CHANGED"
        gone = await caller.ask("PUT", "/budgets", json={"per": "day", "budget": None})
        assert gone == {"budget": None}
        assert len((await caller.ask("GET", "/budgets"))["budgets"]) == 1
        assert [each.tenant for each in await bank.app.budgets.list(tenant="zoo")] == ["zoo"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"budget": {}},
        {"budget": {"usd": "much"}},
        {"budget": {"usd": "NaN"}},
        {"budget": {"usd": "-1"}},
        {"budget": {"usd": "1e999"}},
        {"budget": {"usd": "1e-30"}},
        {"budget": {"wall_time": -1}},
        {"budget": {"wall_time": 1e300}},
        {"budget": {"wall_time": 1e-9}},
        {"budget": {"tokens": -1}},
        {"budget": {"tokens": 2**62}},
        {"budget": {"euros": 1}},
        {"budget": {"steps": 1}, "tenant": "zoo"},
        {"budget": {"steps": 0}},
        {"budget": {"steps": 1, "on_end": "explode"}},
        {"budget": {"steps": 1}, "per": "week"},
        {"budget": {"steps": 1}, "expected": -1},
        {"budget": {"steps": 1}, "session_id": "ses_none"},
    ],
)
async def test_a_server_refuses_a_budget_that_cannot_be_kept(body: Any) -> None:
    async with scene() as bank, bank.caller() as caller:
        response = await caller.request("PUT", "/v1/budgets", json=body)
        assert response.status_code in (404, 422), response.text
        assert (await caller.ask("GET", "/budgets"))["budgets"] == []
        assert await caller.refused("GET", "/budgets?cursor=!", 400) == "INVALID_CURSOR"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "99999999999999999999"])
@pytest.mark.parametrize("name", ["tokens", "wall_time"])
async def test_a_number_that_json_does_not_have_sets_no_budget(name: str, number: str) -> None:
    async with scene() as bank, bank.caller() as caller:
        given = {
            "content": f'{{"budget": {{"{name}": {number}}}}}',
            "headers": {"Content-Type": "application/json"},
        }
        assert await caller.refused("PUT", "/budgets", 400, **given) == "INVALID_JSON"
        assert (await caller.ask("GET", "/budgets"))["budgets"] == []


async def test_only_an_admin_sets_budgets_and_never_those_of_another_tenants_session() -> None:
    async with scene() as bank:
        session = await bank.app.start("teller", "hello", tenant="zoo")
        body = {"session_id": session.id, "budget": {"steps": 1}}
        async with await bank.keyed("read", "send") as caller:
            assert (await caller.ask("GET", "/budgets"))["budgets"] == []
            assert await caller.refused("PUT", "/budgets", 403, json=body)
        async with await bank.keyed() as caller:
            assert await caller.refused("PUT", "/budgets", 404, json=body) == "UNKNOWN_SESSION"


async def test_a_client_starts_under_a_budget_and_sets_others() -> None:
    async with far_away() as far:
        remote = await far.client.start("teller", "hello", budget=Budget(steps=7, usd="0.5"))
        [started, *_] = await the(await far.app.session(remote.id), "session.started")
        limits = started.data["budget"]["limits"]
        assert (limits["steps"], limits["nano_usd"]) == (7, 500_000_000)
        one = await far.client.budgets.set(Budget(steps=5), principal="ada", expected=0)
        assert one
        [here] = await far.app.budgets.list()
        assert (one.principal, one.budget, one.spent) == ("ada", here.budget, here.spent)
        assert tuple(await far.client.budgets.list()) == (one,)
        with pytest.raises(BudgetChanged):
            await far.client.budgets.set(None, principal="ada", expected=0)
        for wrong in (Budget(), Budget(steps=0), "much"):
            with pytest.raises(InvalidDefinition):
                await far.client.budgets.set(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidDefinition):
                await far.client.start("teller", "hello", budget=wrong)  # type: ignore[arg-type]
        assert await far.client.budgets.set(None, principal="ada") is None
        assert tuple(await far.client.budgets.list()) == ()


async def test_a_client_is_told_that_a_turn_handed_back_what_it_had() -> None:
    hand_back = Limits(turn_budget=Budget(model_calls=1, on_end="hand_back"))
    teller = Agent("teller", ScriptedModel([say("all I have")]), limits=hand_back)
    async with (
        Outlast([teller], store="memory://") as app,
        on_a_socket(app) as (host, port),
        Client(f"http://{host}:{port}") as client,
    ):
        remote = await client.start("teller", "hello")
        assert (await remote.wait()).budget_exhausted == "the turn's budget"
        here = await app.session(remote.id)
        assert (await here.wait()).budget_exhausted == "the turn's budget"


def test_the_command_line_shows_sets_and_removes_budgets(tmp_path: Path) -> None:
    place = Place(tmp_path)
    session = place.chat("hello")

    assert "no budgets" in place.run("budgets", "show").stdout
    place.run("budgets", "set", "--tenant", "acme", "--per", "day", "--usd", "20")
    place.run("budgets", "set", "--session", session, "--steps", "3", "--on-end", "fail")
    lines = place.run("budgets", "show").stdout.splitlines()
    assert lines[0].split()[:3] == ["TENANT", "WHOSE", "PER"]
    assert lines[1].split() == ["acme", "(all)", "day", "$20.00", "$0.00", "$0.00", "ask"]
    assert [session in line for line in lines] == [False, False, True]
    [one] = place.json("budgets", "show", "--tenant", "acme")
    assert (one["limits"], one["per"]) == ({"nano_usd": 20 * 10**9}, "day")
    for wrong in (
        ["--usd", "much"],
        ["--usd", "nan"],
        ["--usd", "1e-30"],
        ["--tokens", "-1"],
        ["--wall-time", "1e999"],
        ["--wall-time", "nan"],
        ["--steps", "99999999999999999999"],
        ["--euros", "1"],
        [],
        ["--steps", "1", "--per", "week"],
    ):
        assert place.run("budgets", "set", *wrong).returncode != 0
    assert place.run("budgets", "set", "--session", "ses_none", "--steps", "1").returncode != 0
    assert "taken away" in place.run("budgets", "remove", "--tenant", "acme", "--per", "day").stdout
    assert len(place.json("budgets", "show")) == 1


def test_sync_code_sets_budgets(tmp_path: Path) -> None:
    teller = Agent("teller", ScriptedModel([say("hi")]))
    with opened(Outlast([teller], store=f"sqlite:///{tmp_path}/outlast.db")) as app:
        status = app.budgets.set(Budget(usd=1, unpriced="allow"))
        assert status
        assert status.budget.usd == Decimal(1)
        assert app.budgets.list() == (status,)
        assert (
            app.start("teller", "go", budget=Budget(steps=1, on_end="fail")).wait().output == "hi"
        )


async def test_a_provider_is_told_how_long_its_answer_may_be_and_listed_prices_count() -> None:
    counted = reply(words("Hi"), input_tokens=2000, output_tokens=300)
    async with WireServer(counted) as server:
        model = openai_model(server, "gpt-4o")
        agent = Agent("a", model, budget=Budget(usd="0.01"))
        async with Outlast([agent], store="memory://") as app:
            assert (await (await app.start(agent, "go")).wait()).output == "Hi"
        [request] = server.requests
        # $10 for a million tokens of output: a cent allows a thousand, less what is asked.
        assert 900 < request.body["max_completion_tokens"] < 1000
        client = ProviderModel(model)
        await client.ready()
        listed = client.list_price(Usage(1000, 100))
        assert listed
        assert listed.nano_usd == 1000 * 2500 + 100 * 10_000


async def test_a_model_without_a_listed_price_makes_no_call_under_a_budget_in_dollars() -> None:
    async with WireServer(reply(words("Hi"))) as server:
        agent = Agent("a", openai_model(server, "gpt-nobody-knows"), budget=Budget(usd=1))
        async with Outlast([agent], store="memory://") as app:
            result = await (await app.start(agent, "go")).wait()
        assert (result.error and result.error.code) == "PRICE_UNKNOWN"
        assert server.requests == []
