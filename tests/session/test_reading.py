"""Tools that only read: they begin before the log says so, and may share its commit."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST, agent, running, until

from outlast import Agent, Context, DedupeKey, Limit, Tool, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.event import type_of
from outlast.errors import StoreError
from outlast.store import Commit, Committed, Refused, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.crash import CrashingStore
from outlast.testing.crash_everywhere import SharedStore
from outlast.testing.scripted import ScriptedModel, call, calls, say

TIMEOUT = 60.0


class Noting(SharedStore):
    """Notes what each commit wrote, once it is written."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.commits: list[list[str]] = []

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self.inner.log.commit(commits)
        self.commits += [[type_of(record) for record in commit.records] for commit in commits]
        return results

    @property
    def known(self) -> set[str]:
        """All types of records that are in the log."""
        return {kind for commit in self.commits for kind in commit}

    def with_a(self, kind: str) -> list[list[str]]:
        return [commit for commit in self.commits if kind in commit]


async def test_one_that_ends_at_once_shares_a_commit_with_the_answer_and_the_next_call() -> None:
    @tool(readonly=True)
    async def look(n: int) -> int:
        return n

    store = Noting(MemoryStore())
    script = [calls(("look", {"n": 1}), ("look", {"n": 2})), say("done")]
    async with running(agent(script, tools=[look]), store=store) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"

    [commit] = store.with_a("tool.started")
    assert commit.count("tool.started") == commit.count("tool.completed") == 2
    assert commit.index("message.completed") < commit.index("tool.started")
    assert commit[-1] == "model.started"


@pytest.mark.parametrize("beside", [(), (("look", {"n": 1}),)])
async def test_one_that_takes_its_time_is_in_the_log_while_it_runs(
    beside: tuple[tuple[str, dict[str, int]], ...],
) -> None:
    is_seen = asyncio.Event()

    @tool(readonly=True)
    async def look(n: int) -> int:
        if n == 2:
            await is_seen.wait()
        return n

    store = Noting(MemoryStore())
    script = [calls(*beside, ("look", {"n": 2})), say("done")]
    async with running(agent(script, tools=[look]), store=store) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started", 1 + len(beside))
        is_seen.set()
        assert (await session.wait()).output == "done"

    [began] = store.with_a("tool.started")
    assert began.count("tool.completed") == len(beside)


def tools_with_more_to_them(seen: list[set[str]], store: Noting) -> dict[str, Tool]:
    """Each notes what the log knew when it began."""

    async def look(ctx: Context[Any]) -> str:
        seen.append(store.known)
        return "seen"

    def key(args: dict[str, Any]) -> str:
        return "same"

    return {
        "may have an effect": tool(look),
        "is idempotent": tool(idempotent=True)(look),
        "asks when interrupted": tool(readonly=True, on_interrupt="ask")(look),
        "has a limit": tool(readonly=True, limit=Limit(concurrency=1))(look),
        "has a lane": tool(readonly=True, mutex="door")(look),
        "has a key": tool(readonly=True, idempotency_key=DedupeKey(key, "session"))(look),
    }


@pytest.mark.parametrize("which", list(tools_with_more_to_them([], Noting(MemoryStore()))))
async def test_one_that_has_more_to_it_begins_after_the_log_says_so(which: str) -> None:
    seen: list[set[str]] = []
    store = Noting(MemoryStore())
    look = tools_with_more_to_them(seen, store)[which]
    async with running(agent([call("look"), say("done")], tools=[look]), store=store) as app:
        await (await app.start("a", "go")).wait()

    [known] = seen
    assert "tool.started" in known


async def test_what_takes_its_worker_down_costs_one_answer_and_is_in_the_log_after_that() -> None:
    """A crash takes the answer with it, and the worker that comes after is careful."""
    asked: list[ModelRequest] = []

    @tool(readonly=True)
    async def look() -> str:
        return "seen"

    model = ScriptedModel([call("look"), say("done")], on_request=asked.append)
    looking = Agent("a", model, tools=[look])
    store = Noting(MemoryStore())
    crashing = CrashingStore(store, at=2, when="before", how="raise")
    async with running(looking, store=crashing) as app:
        session = await app.start("a", "go")
        await crashing.crashed.wait()
    assert "message.completed" not in store.known

    async with running(looking, store=store) as app:
        result = await (await app.session(session.id)).wait()

    assert result.output == "done"
    assert len(asked) == 3
    [began] = store.with_a("tool.started")
    assert "message.completed" in began
    assert "tool.completed" not in began


async def test_one_that_was_approved_begins_after_the_log_says_so() -> None:
    """Its answer is in the log, so nothing else would tell how often it took its worker down."""
    seen: list[set[str]] = []
    store = Noting(MemoryStore())

    @tool(readonly=True, approval="always")
    async def look() -> str:
        seen.append(store.known)
        return "seen"

    async with running(agent([call("look"), say("done")], tools=[look]), store=store) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "done"

    [known] = seen
    assert "tool.started" in known


async def test_while_the_store_is_away_one_that_takes_too_long_is_stopped_all_the_same() -> None:
    is_stopped = asyncio.Event()

    @tool(readonly=True, timeout=0.02)
    async def look() -> str:
        try:
            if not is_stopped.is_set():
                await asyncio.Event().wait()
        finally:
            is_stopped.set()
        return "seen"

    class Away(Noting):
        async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
            if any(type_of(record) == "tool.started" for c in commits for record in c.records):
                await is_stopped.wait()
            return await super().commit(commits)

    script = [call("look"), say("done")]
    async with running(agent(script, tools=[look]), store=Away(MemoryStore())) as app:
        session = await app.start("a", "go")
        async with asyncio.timeout(TIMEOUT):
            assert (await session.wait()).output == "done"


async def test_one_that_runs_on_while_its_worker_stops_is_in_the_log_meanwhile() -> None:
    store, may_end = Noting(MemoryStore()), asyncio.Event()

    @tool(readonly=True)
    async def look(n: int) -> int:
        if n == 2:
            await may_end.wait()
            return n
        assert app.worker is not None
        for carrier in app.worker._running():  # as it does when it drains, and in this very round
            carrier.stop()
        return n

    script = [calls(("look", {"n": 1}), ("look", {"n": 2})), say("done")]
    looking = agent(script, tools=[look])
    async with running(looking, store=store, settings=replace(FAST, grace=TIMEOUT)) as app:
        session = await app.start("a", "go")
        async with asyncio.timeout(TIMEOUT):
            await until(session, "tool.started", 2)
            may_end.set()
            assert (await session.wait()).output == "done"


async def test_what_one_records_is_in_the_log_with_its_answer_or_not_at_all() -> None:
    is_committing, has_stepped = asyncio.Event(), asyncio.Event()

    @tool(readonly=True)
    async def look(ctx: Context[Any]) -> str:
        await is_committing.wait()
        await ctx.step(has_stepped.set, name="look")
        return "seen"

    class Refusing(Noting):
        async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
            kinds = {type_of(record) for c in commits for record in c.records}
            if "message.completed" in kinds and not is_committing.is_set():
                is_committing.set()
                await has_stepped.wait()
                raise StoreError("SQLite refused")
            return await super().commit(commits)

    store = Refusing(MemoryStore())
    async with running(agent([call("look"), say("done")], tools=[look]), store=store) as app:
        session = await app.start("a", "go")
        async with asyncio.timeout(TIMEOUT):
            assert (await session.wait()).output == "done"
