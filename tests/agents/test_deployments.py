"""Named deployments: which code carries a turn on, on both stores."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST, agent, results_of, running, the, until

from outlast import Agent, Context, ModelOptions, Outlast, WorkerSettings, tool
from outlast.agents.model.client import ModelRequest
from outlast.agents.runtime import model_call
from outlast.core import breaker
from outlast.errors import InvalidDefinition, InvalidInput, UnknownDeployment
from outlast.log.verify import verify
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    return str(request.getfixturevalue("postgres_url"))


def of(version: str, **options: Any) -> Agent[Any, Any]:
    """An agent that asks before it signs, and says which code it is."""

    @tool(approval="always")
    async def sign(ctx: Context) -> str:
        """Sign."""
        return f"signed by {version}"

    def reply(request: ModelRequest) -> ScriptedReply:
        last = request.view.messages[-1]
        return call("sign") if "sign" in str(last) and "signed" not in str(last) else say(version)

    return agent(reply, tools=[sign], **options)


@asynccontextmanager
async def deployed(
    version: str, store: str, known: Agent[Any, Any] | None = None, **settings: Any
) -> AsyncIterator[Outlast]:
    fast = replace(FAST, deployment=version, **settings)
    async with running(known or of(version), store=store, settings=fast) as app:
        yield app


async def links(app: Outlast, session_id: str, kind: str) -> list[str]:
    explained = await (await app.session(session_id)).explain()
    return [link.text for lane in explained.lanes for link in lane.links if link.kind == kind]


async def test_a_turn_ends_on_the_code_it_began_on_and_the_next_is_the_new_codes(
    store: str,
) -> None:
    async with deployed("v1", store) as old:
        session = await old.start("a", "sign")
        await until(session, "request.opened")
        async with deployed("v2", store) as new:
            [current, before] = await new.deployments.list()
            assert (current.name, current.current, current.turns) == ("v2", ("a",), 0)
            assert (before.name, before.turns, before.can_be_retired) == ("v1", 1, False)
            assert await links(new, session.id, "deployment") == ["it began on the deployment v1"]

            [request] = await session.requests()
            await session.answer(request.request_id, "approve")
            assert (await session.wait()).output == "v1"
            assert await results_of(session) == ["signed by v1"]
            assert (await (await session.send("hello")).result()).output == "v2"
            began = [event.data.get("deployment") for event in await the(session, "turn.started")]
            assert began == ["v1", "v2"]
            assert [each.can_be_retired for each in await new.deployments.list()] == [False, True]
            assert not await verify(new.store, session.id)


async def test_a_turn_whose_deployment_is_gone_goes_on_with_the_current_one(store: str) -> None:
    async with deployed("v1", store) as old:
        session_id = (await old.start("a", "sign")).id
        await until(await old.session(session_id), "request.opened")
    async with deployed("v2", store) as new:
        session = await new.session(session_id)
        [request] = await session.requests()
        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "v2"
        assert await results_of(session) == ["signed by v2"]


async def test_a_pinned_session_waits_for_its_deployment_until_it_is_moved(store: str) -> None:
    async with deployed("v1", store, pin="session") as old:
        session_id = (await old.start("a", "hi")).id
        assert (await (await old.session(session_id)).wait()).output == "v1"
    async with deployed("v2", store, pin="session") as new:
        session = await new.session(session_id)
        receipt = await session.send("hello")
        [why] = await links(new, session_id, "worker")
        assert "it stays with the deployment v1, of which none is there" in why
        assert await new.deployments.retire("v1", to="v2") == 1
        assert (await receipt.result()).output == "v2"


async def test_a_promoted_deployment_takes_the_next_turns(store: str) -> None:
    async with deployed("v1", store) as app, deployed("v2", store):
        await app.deployments.promote("v1")
        session = await app.start("a", "hi")
        assert (await session.wait()).output == "v1"
        with pytest.raises(UnknownDeployment, match="named a deployment 'v3'; there is: v1, v2"):
            await app.deployments.promote("v3")
        with pytest.raises(UnknownDeployment, match="named a deployment 'v3'"):
            await app.deployments.retire("v1", to="v3")
        with pytest.raises(InvalidInput, match="cannot be retired to itself"):
            await app.deployments.retire("v1", to="v1")
        with pytest.raises(InvalidInput, match="a deployment has to be a name such as") as refused:
            await app.deployments.retire("v1", to="two words")
        assert type(refused.value) is InvalidInput  # which the server answers with 400


async def test_a_session_whose_key_is_rejected_is_gone_on_with_by_any_deployment(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (breaker, model_call):
        monkeypatch.setattr(module, "LONGEST_PAUSE", 50)

    def rejected(request: ModelRequest) -> ScriptedReply:
        raise ScriptedError("blocked", "the key is rejected")

    bad = agent(rejected, model_options=ModelOptions(max_attempts=1))
    async with deployed("v1", store), deployed("v2", store, bad) as new:
        session = await new.start("a", "hi")
        # v1, which is not current, has another key: its worker takes the lane and goes on.
        assert (await session.wait()).output == "v1"
        assert len(await the(session, "provider.unavailable")) == 1


async def test_a_child_runs_on_the_deployment_of_its_parent(store: str) -> None:
    def family(version: str) -> Agent[Any, Any]:
        child = Agent("child", ScriptedModel(lambda _: say(f"child of {version}")))

        @tool
        async def delegate(ctx: Context) -> str:
            """Ask the child."""
            await ctx.ask("Now?")
            return str(await ctx.agent("child").ask("go"))

        def reply(request: ModelRequest) -> ScriptedReply:
            return call("delegate") if len(request.view.messages) == 1 else say("done")

        return agent(reply, tools=[delegate], subagents=[child])

    async with deployed("v1", store, family("v1")) as old:
        session = await old.start("a", "go")
        await until(session, "request.opened")
        async with deployed("v2", store, family("v2")):
            [request] = await session.requests()
            await session.answer(request.request_id, text="yes")
            await session.wait()
            assert await results_of(session) == ["child of v1"]


async def test_an_app_without_a_name_pins_nothing(store: str) -> None:
    async with running(of("plain"), store=store) as app:
        session = await app.start("a", "sign")
        await until(session, "request.opened")
        assert await app.deployments.list() == ()
        assert await app.store.listing.pins(session.id) == {}
        assert await links(app, session.id, "deployment") == []


def test_a_deployment_has_a_name_that_can_be_typed() -> None:
    for bad in ("two words", "*", "-x", "a" * 101, 7):
        with pytest.raises(InvalidDefinition, match="deployment has to be a name such as 2026"):
            WorkerSettings(deployment=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidDefinition, match="pin"):
        WorkerSettings(deployment="v1", pin="lane")  # type: ignore[arg-type]
