"""What models were used for, what it has cost, and for whom: recorded once, added up in rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from scene import FAST, agent, at_standstill, running, the, until

from outlast import Agent, Budget, Limits, ModelOptions, Outlast, tool
from outlast.agents.model import FinishedAnswer, ModelPiece, ModelRequest, Text
from outlast.core.record import UsageSum
from outlast.core.result import CallPrice, Usage
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.log.explain import explain, gather
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing import crash_everywhere
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, calls, say
from outlast.usage import ModelPrice, Prices, UsageKey

LIST = Prices(known={"scripted": ModelPrice(input=2, output="8.5")}, version="of May")
PRICED = ModelOptions(prices=LIST)


def cost(used: UsageSum) -> int:
    """What tokens cost by the list, in billionths of a dollar."""
    return used.input_tokens * 2_000 + used.output_tokens * 8_500


async def recorded(app: Outlast) -> UsageSum:
    """Add up all `usage.recorded` of all sessions, but those that tell of other servers'."""
    total = UsageSum()
    for info in await app.sessions(limit=1000):
        for e in await the(await app.session(info.session_id), "usage.recorded"):
            total += UsageSum(
                e.data.get("input_tokens", 0),
                e.data.get("output_tokens", 0),
                model_calls=1,
                unpriced_calls=e.data.get("unpriced_calls", 0),
                nano_usd=e.data.get("nano_usd", 0),
            )
    return total


async def keys(app: Outlast, key: UsageKey, **wanted: Any) -> dict[str, int]:
    """How many model calls there were, by a key."""
    return {line.key: line.total.model_calls for line in await app.usage.by(key, **wanted)}


async def test_a_turn_has_a_price_which_is_recorded_with_the_list_that_it_is_from() -> None:
    async with running(agent([say("one"), say("two")], model_options=PRICED)) as app:
        session = await app.start("a", "go")
        first = (await session.wait()).usage
        second = (await (await session.send("on")).result()).usage

        [one, _] = await the(session, "usage.recorded")
        assert (one.data["model"], one.data["prices"]) == ("scripted", "of May")
        assert one.data["nano_usd"] == cost(first.own) > 0
        assert first.own == first.total
        assert first.own.usd == Decimal(cost(first.own)) / 10**9
        whole = await session.usage()
        assert whole.own == whole.total == first.own + second.own == await recorded(app)
        assert whole.own.model_calls == 2
        assert not await verify(app.store, session.id)


async def test_a_price_that_nobody_knows_is_no_zero() -> None:
    async with running(agent([say("one")])) as app:
        session = await app.start("a", "go")
        used = (await session.wait()).usage.own

        assert (used.model_calls, used.unpriced_calls, used.nano_usd) == (1, 1, 0)
        [event] = await the(session, "usage.recorded")
        assert (event.data["unpriced_calls"], event.data.get("prices", "")) == (1, "")
        told = await explain_of(app, session.id)
        assert "1 of unknown price" not in told  # the turn is over


async def explain_of(app: Outlast, session_id: str) -> str:
    evidence = await gather(app.store, session_id, datetime.now(UTC))
    return "\n".join(link.text for lane in explain(evidence).lanes for link in lane.links)


async def test_explain_says_what_the_open_turn_has_used() -> None:
    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    async with running(agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()
        assert "it has used 10 tokens in, 1 out, 1 call, 1 of unknown price" in await explain_of(
            app, session.id
        )


async def test_a_call_whose_price_nobody_knows_is_refused_where_the_agent_says_so() -> None:
    asked: list[ModelRequest] = []
    strict = ModelOptions(prices=Prices(unknown="refuse"))
    model = ScriptedModel([say("one")], on_request=asked.append)
    async with running(Agent("a", model, model_options=strict)) as app:
        session = await app.start("a", "go")
        away = await until(session, "provider.unavailable")
        assert away.data["error"]["code"] == "PRICE_UNKNOWN"
        assert away.data["blocked"]
        assert asked == []
        assert await app.usage.by("agent") == ()


async def test_a_model_without_a_price_gives_way_to_one_that_has_a_price() -> None:
    models = [ScriptedModel([say("dear")], name="new"), ScriptedModel([say("cheap")], name="old")]
    prices = Prices(known={"old": ModelPrice(input=1, output=1)}, unknown="refuse")
    known: Agent[Any, Any] = Agent("a", models, model_options=ModelOptions(prices=prices))
    async with running(known) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "cheap"
        assert await keys(app, "model") == {"old": 1}


class Knowing(ScriptedModel):
    """A client that knows what its calls cost."""

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        price = CallPrice(5_000_000, "the provider's word")
        return FinishedAnswer((Text("hi"),), Usage(1, 2), "wise-1", "stop", price)


async def test_a_client_may_know_what_a_call_has_cost() -> None:
    options = ModelOptions(stream=False)
    async with running(Agent("a", Knowing([], name="wise"), model_options=options)) as app:
        session = await app.start("a", "go")
        used = (await session.wait()).usage.own
        assert str(used.usd) == "0.005"
        [event] = await the(session, "usage.recorded")
        assert event.data["prices"] == "the provider's word"


async def test_an_own_price_goes_before_the_clients_and_may_name_the_model_as_it_answers() -> None:
    prices = Prices(known={"wise-1": ModelPrice(input=1, output=10)})
    options = ModelOptions(stream=False, prices=prices)
    async with running(Agent("a", Knowing([], name="wise"), model_options=options)) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).usage.own.usd == Decimal("0.000021")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Prices(known={"m": ModelPrice(input=-1, output=1)}), "input price of 'm'"),
        (Prices(known={"m": ModelPrice(input=1, output="much")}), "output price of 'm'"),
        (Prices(known={"m": ModelPrice(input=1, output=1, cache_read=float("inf"))}), "cache_read"),
        (Prices(known={"m": 3}), "ModelPrice"),  # type: ignore[dict-item]
        (Prices(unknown="guess"), "record or refuse"),  # type: ignore[arg-type]
        (Prices(version=""), "version"),
        ({"m": 1}, "Prices"),
    ],
)
def test_prices_that_are_none_are_refused(wrong: Any, says: str) -> None:
    with pytest.raises(InvalidDefinition, match=says):
        agent([], model_options=ModelOptions(prices=wrong))


def family(leaf: list[ScriptedReply]) -> Agent[Any, Any]:
    """Three levels: a boss asks two leads at once, each of whom asks a clerk."""
    priced: dict[str, Any] = {"model_options": PRICED}
    clerk: Agent[Any, Any] = Agent("clerk", ScriptedModel(leaf), **priced)
    script = [call("clerk", message="please"), say("led")]
    leads = [
        Agent(name, ScriptedModel(script), subagents=[clerk], **priced) for name in ("ann", "ben")
    ]
    both = calls(("ann", {"message": "please"}), ("ben", {"message": "please"}))
    return Agent("boss", ScriptedModel([both, say("done")]), subagents=leads, **priced)


async def test_the_total_of_a_turn_is_that_of_all_below_it() -> None:
    async with running(family([say("filed")])) as app:
        session = await app.start("boss", "go", principal="ada")
        usage = (await session.wait()).usage

        assert (usage.own.model_calls, usage.total.model_calls) == (2, 2 + 2 * 2 + 2)
        assert usage.total == await recorded(app) == (await session.usage()).total
        assert (await session.usage()).own == usage.own
        assert await keys(app, "agent") == {"ann": 2, "ben": 2, "boss": 2, "clerk": 2}
        # Whoever has sent the message pays for all that comes of it.
        assert await keys(app, "principal") == {"ada": 8}
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)


async def test_the_total_has_children_that_failed() -> None:
    strict = Limits(max_steps=1)
    poor = Agent("poor", ScriptedModel([call("nothing")]), limits=strict)
    boss = Agent("boss", ScriptedModel([call("poor", message="x"), say("ok")]), subagents=[poor])
    async with running(boss) as app:
        session = await app.start("boss", "go")
        usage = (await session.wait()).usage
        assert (usage.own.model_calls, usage.total.model_calls) == (2, 3)


async def test_a_session_counts_a_child_that_is_at_work() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    slow = Agent("slow", ScriptedModel([call("hang")]), tools=[hang])
    boss = Agent("boss", ScriptedModel([call("slow", message="x"), say("ok")]), subagents=[slow])
    async with running(boss) as app:
        session = await app.start("boss", "go")
        await begun.wait()
        usage = await session.usage()
        assert (usage.own.model_calls, usage.total.model_calls) == (1, 2)


async def test_the_sender_of_a_message_pays_for_its_turn() -> None:
    async with running(agent([say("one"), say("two"), say("three")])) as app:
        session = await app.start("a", "go", principal="ada", tenant="acme")
        await session.wait()
        await (await session.send("on", principal="bob")).result()
        await (await session.send("on")).result()

        assert await keys(app, "principal", tenant="acme") == {"ada": 2, "bob": 1}
        assert await keys(app, "tenant") == {"acme": 3}
        assert await keys(app, "session", principal="bob") == {session.id: 1}


async def test_usage_is_told_by_day_in_utc() -> None:
    async with at_standstill(agent([say("one"), say("two")])) as (app, clock):
        session = await app.start("a", "go")
        await session.wait()
        today = datetime.fromtimestamp(clock.now() / 1000, UTC).date()
        clock.advance(24 * 3600 * 1000)
        await (await session.send("on")).result()

        tomorrow = date.fromordinal(today.toordinal() + 1)
        assert await keys(app, "day") == {today.isoformat(): 1, tomorrow.isoformat(): 1}
        assert await keys(app, "day", since=tomorrow) == {tomorrow.isoformat(): 1}
        assert (await app.usage.total(until=today)).total.model_calls == 1
        assert (await app.usage.total(agent="b")).total == UsageSum()


async def test_totals_outlive_the_erasure_of_a_tree() -> None:
    async with running(family([say("filed")])) as app:
        session = await app.start("boss", "go", principal="ada", tenant="acme")
        before = (await session.wait()).usage.total
        await app.erase(session.id)

        assert await app.sessions() == []
        assert await keys(app, "session") == {"": 8}
        assert await keys(app, "agent") == {"ann": 2, "ben": 2, "boss": 2, "clerk": 2}
        [line] = await app.usage.by("principal", tenant="acme")
        assert (line.key, line.own, line.remote) == ("ada", before, UsageSum())


async def test_a_parent_is_told_what_a_child_used_that_was_erased() -> None:
    begun = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    slow = Agent("slow", ScriptedModel([call("hang")]), tools=[hang])
    boss = Agent("boss", ScriptedModel([call("slow", message="x"), say("ok")]), subagents=[slow])
    async with running(boss) as app:
        session = await app.start("boss", "go")
        await begun.wait()
        [child] = [e.data["child"] for e in await the(session, "subagent.called")]
        await app.erase(child)
        usage = (await session.wait()).usage
        assert (usage.own.model_calls, usage.total.model_calls) == (2, 3)


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"key": "month"}, "session, agent, model, tenant, principal, day"),
        ({"key": "day", "since": "2026-01-01"}, "since is a date"),
        ({"key": "day", "until": datetime(2026, 1, 1, tzinfo=UTC)}, "until is a date"),
        ({"key": "day", "limit": 0}, "limit"),
        ({"key": "day", "agent": 3}, "agent"),
    ],
)
async def test_usage_that_cannot_be_meant_is_refused(wanted: Any, says: str) -> None:
    async with running(agent([])) as app:
        with pytest.raises(InvalidInput, match=says):
            await app.usage.by(**wanted)


async def test_an_index_that_says_another_usage_than_the_log_is_found() -> None:
    async with running(agent([say("one")], model_options=PRICED)) as app:
        session = await app.start("a", "go")
        await session.wait()
        store: Any = app.store
        wrong = "UPDATE outlast_usage SET nano_usd = nano_usd + 1"
        await store._access.write(lambda db: [db.raw.execute(wrong).rowcount])
        [finding] = await verify(app.store, session.id)
        assert finding.code == "USAGE_INDEX"
        assert "'scripted'" in finding.message


async def test_usage_is_counted_once_wherever_a_worker_is_killed() -> None:
    async def do(app: Outlast) -> tuple[bool, bool]:
        session = await app.start("boss", "go", principal="ada")
        usage = (await session.wait()).usage
        total = (await app.usage.total()).total
        for info in await app.sessions():
            assert not await verify(app.store, info.session_id)
        return total == await recorded(app), usage == await session.usage()

    report = await crash_everywhere(do, agents=[family([say("filed")])], store=MemoryStore)
    assert len(report.runs) > 20
    ended = [(run.output, run.error) for run in (report.undisturbed, *report.runs)]
    assert [each for each in ended if each != ((True, True), "")] == []


class Boastful(ScriptedModel):
    """A model whose provider says of every answer that it has used so much."""

    def __init__(self, usage: Usage) -> None:
        super().__init__(lambda _: say("hello"), name="boastful")
        self._usage = usage

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        yield FinishedAnswer((Text("hello"),), self._usage, model="boastful", finish="stop")


BOASTS = {
    "more than a row has room for": Usage(2**63, 1),
    "as much as a row has room for": Usage(2**63 - 1, 2**63 - 1),
    "what no record has room for": Usage(2**70, 1, details={"audio": 2**70}),
    "more from the cache": Usage(1, 1, 2**62, 2**62),
    "less than nothing": Usage(-5, -7, -1, -1, {"audio": -1}),
}


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_whatever_a_provider_says_that_it_has_used_the_session_goes_on(
    kind: str, request: pytest.FixtureRequest, path: Path
) -> None:
    """And it is added up: one tenant's provider keeps nobody from seeing what was used."""
    url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{path}"
    prices = Prices(known={"boastful": ModelPrice(input=10**6, output=10**6)})
    budget = Budget(tokens=10**15, on_end="fail")
    agents = [
        Agent(
            f"a{number}",
            Boastful(usage),
            model_options=ModelOptions(prices=prices),
            budget=budget,
        )
        for number, usage in enumerate(BOASTS.values())
    ]
    async with Outlast(agents, store=url, worker=FAST) as app:
        for each in agents:
            session = await app.start(each, "go")
            await session.wait(timeout=20)
            await session.send("again")
            result = await session.wait(timeout=20)

            assert result.status == "completed", result
            used = (await session.usage()).total
            assert min(used.input_tokens, used.output_tokens, used.nano_usd) >= 0
            assert used.model_calls == 2
        assert (await app.usage.total()).total.model_calls == 2 * len(agents)
