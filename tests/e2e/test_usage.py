"""Usage and prices as others see them: over a wire, over HTTP, with the client, at a terminal."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from client_scene import far_away
from http_scene import scene
from remote_scene import output_of, the, two_apps
from terminal import Place

from outlast import Agent, ModelOptions, Outlast, WorkerSettings
from outlast.agents.model.pydantic_ai import ProviderModel
from outlast.core.record import UsageSum
from outlast.log.verify import verify
from outlast.testing.provider_server import WireServer, anthropic_model, openai_model, reply, words
from outlast.testing.scripted import ScriptedModel, say
from outlast.usage import ModelPrice, Prices

PRICES = Prices(known={"scripted": ModelPrice(input=2, output=8)})


async def test_a_known_model_is_priced_by_the_list_that_is_installed() -> None:
    counted = reply(words("Hi"), input_tokens=2000, output_tokens=300, cached_tokens=1000)
    async with WireServer(counted) as server:
        agent = Agent("a", openai_model(server, "gpt-4o"))
        async with Outlast([agent], store="memory://") as app:
            session = await app.start(agent, "go")
            used = (await session.wait()).usage.own
            [event] = await the(session, "usage.recorded")
    # $2.50 for a million tokens of input, half of that for those from a cache, $10 of output.
    assert used.nano_usd == 1000 * 2500 + 1000 * 1250 + 300 * 10_000
    assert event.data["prices"] == f"genai-prices {version('genai-prices')}"
    assert event.data["model"].endswith("gpt-4o")


@pytest.mark.parametrize(
    ("build", "name", "is_priced"),
    [
        (openai_model, "gpt-4o", True),
        (anthropic_model, "claude-sonnet-4-5", True),
        (openai_model, "gpt-nobody-knows", False),
    ],
)
async def test_it_is_known_before_a_call_whether_it_has_a_price(
    build: Any, name: str, is_priced: bool
) -> None:
    async with WireServer(reply(words("Hi"))) as server:
        assert await ProviderModel(build(server, name)).is_priced() is is_priced
        assert server.requests == []


async def test_a_model_that_is_on_no_list_is_recorded_without_a_price() -> None:
    async with WireServer(reply(words("Hi"))) as server:
        agent = Agent("a", openai_model(server, "gpt-nobody-knows"))
        async with Outlast([agent], store="memory://") as app:
            used = (await (await app.start(agent, "go")).wait()).usage.own
    assert (used.model_calls, used.unpriced_calls, used.nano_usd) == (1, 1, 0)


async def test_a_server_adds_up_the_usage_of_its_callers_tenant() -> None:
    async with scene() as bank, bank.caller() as caller:
        one = (await caller.start())["session_id"]
        await caller.start("refund")
        stranger = await bank.app.start("teller", "hello", tenant="zoo")
        await stranger.wait()

        page = await caller.ask("GET", "/usage?by=session&limit=1")
        rest = await caller.ask("GET", f"/usage?by=session&cursor={page['next_cursor']}")
        assert [line["key"] for line in page["lines"]] == [one]
        assert len(rest["lines"]) == 1
        assert rest["next_cursor"] is None
        [line] = (await caller.ask("GET", "/usage?by=tenant"))["lines"]
        assert line["key"] == "default"
        assert line["total"] == line["own"]
        assert line["own"]["model_calls"] == line["own"]["unpriced_calls"] == 2
        assert line["own"]["usd"] == "0"
        assert (await caller.ask("GET", "/usage/total"))["own"] == line["own"]
        assert (await caller.ask("GET", "/usage?since=2000-01-01&until=2000-01-02"))["lines"] == []
        # Nothing of another tenant is told, however it is asked for.
        assert (await caller.ask("GET", f"/usage?session_id={stranger.id}"))["lines"] == []
        assert len((await caller.ask("GET", "/usage?by=session&tenant=zoo"))["lines"]) == 2
        of_stranger = await caller.ask("GET", f"/usage/total?session_id={stranger.id}")
        assert of_stranger["total"]["model_calls"] == 0
        async with await bank.keyed("read", tenant="zoo") as neighbour:
            lines = (await neighbour.ask("GET", "/usage?by=session"))["lines"]
            assert [found["key"] for found in lines] == [stranger.id]
        session = await caller.ask("GET", f"/sessions/{one}")
        assert session["usage"]["own"] == page["lines"][0]["own"]
        assert await caller.refused("GET", "/usage?cursor=!", 400) == "INVALID_CURSOR"
        assert await caller.refused("GET", "/usage?by=month", 422)
        for day in ("soon", "0", "20990131"):
            assert await caller.refused("GET", f"/usage?since={day}", 422)


async def test_a_page_that_ends_with_nobody_goes_on_behind_it() -> None:
    async with scene() as bank, bank.caller() as caller:
        for principal in ("", "ada"):
            await (await bank.app.start("teller", "hello", principal=principal)).wait()
        first = await caller.ask("GET", "/usage?by=principal&limit=1")
        then = await caller.ask("GET", f"/usage?by=principal&cursor={first['next_cursor']}")
        found = [line["key"] for page in (first, then) for line in page["lines"]]
        assert found == ["", "ada"]


async def test_a_client_sees_the_usage_that_its_server_sees() -> None:
    async with far_away() as far:
        remote = await far.client.start("teller", "hello")
        await remote.wait()
        session = await far.app.session(remote.id)

        assert await remote.usage() == await session.usage()
        assert (await remote.wait()).usage == (await session.wait()).usage
        for key in ("session", "agent", "model", "tenant", "principal", "day"):
            assert tuple(await far.client.usage.by(key)) == await far.app.usage.by(key)
        assert await far.client.usage.total() == await far.app.usage.total()
        nothing = await far.client.usage.total(agent="nobody")
        assert nothing.total == UsageSum()


async def test_what_a_remote_agent_used_is_in_the_total_and_told_apart() -> None:
    priced = Agent(
        "teller", ScriptedModel([say("well")]), model_options=ModelOptions(prices=PRICES)
    )
    async with two_apps("hello", asked=priced) as pair:
        session = await pair.near.start("boss", "go", principal="ada")
        assert await output_of(session) == "done"
        there = (await (await pair.child()).usage()).total
        usage = (await session.wait()).usage

        assert there.nano_usd > 0
        assert usage.total == usage.own + there
        assert await session.usage() == usage
        [line] = await pair.near.usage.by("principal")
        assert (line.key, line.own, line.remote) == ("ada", usage.own, there)
        assert {line.key for line in await pair.near.usage.by("model")} == {"", "scripted"}
        *_, told = sorted(
            await the(session, "usage.recorded"), key=lambda e: str(e.data.get("remote", ""))
        )
        assert told.data["remote"] == "teller"
        assert not await verify(pair.near.store, session.id)


async def test_the_command_line_adds_up_what_was_used(tmp_path: Path) -> None:
    place = Place(tmp_path)
    session = place.chat("hello")
    options = ModelOptions(prices=PRICES)
    async with Outlast(
        [Agent("other", ScriptedModel([say("one")]), model_options=options)],
        store=f"sqlite:///{tmp_path}/outlast.db",
        worker=WorkerSettings(agents=("other",)),
    ) as app:
        await (await app.start("other", "go", principal="ada")).wait()

    told = place.json("usage", "--by", "agent")
    by_agent = {line["key"]: line["total"] for line in told["lines"]}
    assert by_agent["other"]["nano_usd"] == 10 * 2000 + 8000
    assert told["total"]["total"]["model_calls"] == sum(
        used["model_calls"] for used in by_agent.values()
    )
    shown = place.run("usage", "--by", "principal")
    lines = shown.stdout.splitlines()
    assert lines[0].split()[:2] == ["PRINCIPAL", "CALLS"]
    assert lines[1].split() == ["ada", "1", "10", "1", "0", "0", "$0.000028"]
    assert lines[2].endswith("of unknown price")
    assert lines[3].startswith("total")
    assert "no usage" in place.run("usage", "--since", "2000-01-01", "--until", "2000-01-01").stdout
    refused = place.run("usage", "--by", "month")
    assert refused.returncode == 2
    assert "none of" in refused.stderr
    assert "unknown price" in place.run("show", session).stdout
    assert place.json("show", session)["usage"]["own"]["model_calls"] > 0
