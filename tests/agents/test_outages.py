"""Outages of minutes and of more than a day, in a time that passes when nothing is to be done."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from known import known
from scene import log_of

from outlast import Agent, ModelOptions, Outlast, Receipt, Session, WorkerSettings, tool
from outlast.agents.model.client import ModelRequest
from outlast.agents.model.pydantic_ai import clients_of
from outlast.agents.options import DEFAULT_MODEL_OPTIONS
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.executor import AgentExecutor
from outlast.agents.subagent import ref_of
from outlast.core.message import ToolOutputs
from outlast.engine.worker import Worker
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say
from outlast.testing.simulation.clock import VirtualClock
from outlast.testing.simulation.history import History
from outlast.testing.simulation.loop import VirtualLoop
from outlast.testing.simulation.provider import PROVIDER_AWAY, SimulatedOutage, SimulatedProvider
from outlast.testing.simulation.worker import InlineThreads, VirtualLeaseKeeper

MINUTE, HOUR = 60.0, 3600.0
SETTINGS = WorkerSettings(lease=12 * HOUR, poll=MINUTE, watch=HOUR)
OUTAGES = {
    "fails": SimulatedOutage("fails"),
    "blocks": SimulatedOutage("blocks"),
    "asks for patience": SimulatedOutage("asks for patience", retry_after=200_000),
    "cuts streams": SimulatedOutage("cuts streams"),
}
SIZES = [
    ("fails", 50, 20),
    ("blocks", 10, 4),
    ("asks for patience", 10, 4),
    ("cuts streams", 10, 4),
]
FEWER = [(kind, max(tasks // 3, 3), max(talks // 3, 2)) for kind, tasks, talks in SIZES]
"""For a day: each session is tried some hundred times."""
PROBES_IN_TEN_MINUTES = 30
"""How often all lanes together call a provider that is known to be away for so long, at most."""

Story = Callable[[Outlast, SimulatedProvider], Awaitable[None]]


def live_through(story: Story, make: Callable[[SimulatedProvider], list[Agent[Any, Any]]]) -> None:
    """Have a story happen with one worker, in virtual time."""
    loop = VirtualLoop()
    clock = VirtualClock(loop, "outages")
    provider = SimulatedProvider(0, History(loop.time, lambda: ""))
    agents = make(provider)

    async def happen() -> None:
        store = MemoryStore(clock)
        others = {agent.name: ref_of(agent, ()) for agent in agents}
        environment = Environment(public_url="https://here.example", agents=others)
        executors = {
            agent.name: AgentExecutor(
                agent, clients_of(agent), None, InlineThreads(), clock, environment
            )
            for agent in agents
        }
        worker = Worker(store, executors, clock, SETTINGS, keep_lease=VirtualLeaseKeeper)
        await worker.start()
        await story(Outlast(agents, store=store, worker=None, clock=clock), provider)
        await worker.stop()
        await store.close()

    try:
        loop.run_until_complete(happen())
    finally:
        loop.close()


def writer(
    provider: SimulatedProvider, options: ModelOptions = DEFAULT_MODEL_OPTIONS
) -> list[Agent[Any, Any]]:
    model = provider.behind(ScriptedModel(lambda _: say("All is well.", chunks=4)))
    return [Agent("writer", model, model_options=options)]


async def types_of(session: Session[Any]) -> Counter[str]:
    return Counter(event.type for event in await log_of(session, internals=True))


async def count_calls(session: Session[Any]) -> int:
    """Count the failed calls of a session that reached its provider."""
    failed = ("model.retrying", "provider.unavailable", "provider.still_unavailable")
    events = await log_of(session, internals=True)
    return sum(event.type in failed and event.data.get("asked", True) for event in events)


# Ten minutes


@pytest.mark.parametrize(("kind", "tasks", "conversations"), SIZES)
def test_ten_minutes_without_a_provider_cost_no_session_and_few_calls(
    kind: str, tasks: int, conversations: int
) -> None:
    async def story(app: Outlast, provider: SimulatedProvider) -> None:
        provider.outage = OUTAGES[kind]
        started = [await app.start("writer", f"task {n}", mode="task") for n in range(tasks)]
        talks = [await app.start("writer", f"talk {n}") for n in range(conversations)]
        await asyncio.sleep(5 * MINUTE)
        later: list[Receipt[Any]] = [await talk.send("and now?") for talk in talks]
        await asyncio.sleep(5 * MINUTE)
        calls = sum([await count_calls(session) for session in (*started, *talks)])
        provider.mend()
        results = [await session.wait() for session in (*started, *talks)]
        results += [await receipt.result() for receipt in later]

        assert {(result.status, result.output) for result in results} == {
            ("completed", "All is well.")
        }
        assert calls <= tasks + conversations + PROBES_IN_TEN_MINUTES  # all began at once
        for session in (*started, *talks):
            seen = await types_of(session)
            assert (seen["provider.unavailable"], seen["provider.available"]) == (1, 1)
            assert seen["turn.failed"] == seen["session.failed"] == 0
            assert [*await verify(app.store, session.id)] == []

    live_through(story, writer)


# More than there is patience


def test_after_a_day_turns_fail_with_the_providers_error_and_a_retry_goes_on() -> None:
    async def story(app: Outlast, provider: SimulatedProvider) -> None:
        provider.outage = OUTAGES["fails"]
        task = await app.start("writer", "one", mode="task")
        talk = await app.start("writer", "two")
        assert talk.receipt is not None
        await asyncio.sleep(23.9 * HOUR)
        behind = await talk.send("three")
        for session in (task, talk):
            assert (await types_of(session))["turn.failed"] == 0
        await asyncio.sleep(1.1 * HOUR)
        assert (await types_of(talk))["turn.failed"] == 2  # the message behind gets no day more

        failed = [await task.wait(), await talk.receipt.result(), await behind.result()]
        assert {(each.status, known(each.error).code) for each in failed} == {
            ("failed", PROVIDER_AWAY)
        }
        for session in (task, talk):
            info = await session.info()
            assert (info.over, info.status) == ("", "failed")
            assert (await types_of(session))["provider.unavailable"] == 1

        provider.mend()
        again = [await session.retry() for session in (task, talk)]
        assert [(await each.result()).output for each in again] == ["All is well."] * 2
        assert (await task.info()).over == "completed"
        for session in (task, talk):
            assert [*await verify(app.store, session.id)] == []

    live_through(story, writer)


@pytest.mark.parametrize(("kind", "tasks", "conversations"), FEWER)
def test_after_25_hours_all_sessions_are_retried_in_one_command_and_end_well(
    kind: str, tasks: int, conversations: int
) -> None:
    async def story(app: Outlast, provider: SimulatedProvider) -> None:
        provider.outage = OUTAGES[kind]
        jobs = [
            await app.start("writer", f"task {n}", mode="task", dispatch_id=f"task {n}")
            for n in range(tasks)
        ]
        talks = [await app.start("writer", f"talk {n}") for n in range(conversations)]
        await asyncio.sleep(20 * HOUR)
        later = [await talk.send("and now?") for talk in talks]
        await asyncio.sleep(5 * HOUR)
        calls = sum([await count_calls(session) for session in (*jobs, *talks)])
        assert calls <= tasks + conversations + 25 * 2 * 60  # one, and one more that has begun
        # What was asked last can be retried; what failed before that was left behind.
        failures = [(await each.result()).error for each in later]
        [code] = {failure.code for failure in failures if failure}
        assert {info.status for info in await app.sessions(failed=True)} == {"failed"}

        provider.mend()
        again = {"mode": "task", "dispatch_id": "task 0", "retry_failed": True}
        assert (await app.start("writer", "task 0", **again)).id == jobs[0].id  # type: ignore[arg-type]
        retried = await app.bulk.retry(code=code)
        assert (retried.retried, retried.left) == (tasks + conversations - 1, 1 + conversations)
        results = [await session.wait() for session in (*jobs, *talks)]
        assert {result.output for result in results} == {"All is well."}
        assert {(await task.info()).over for task in jobs} == {"completed"}
        assert not await app.sessions(failed=True)
        for session in (*jobs, *talks):
            assert [*await verify(app.store, session.id)] == []

    live_through(story, writer)


@pytest.mark.parametrize(
    "outage", [OUTAGES["blocks"], SimulatedOutage("asks for patience", retry_after=3_600_000)]
)
def test_whatever_the_provider_says_it_is_waited_for_a_day_and_no_longer(
    outage: SimulatedOutage,
) -> None:
    async def story(app: Outlast, provider: SimulatedProvider) -> None:
        provider.outage = outage
        session = await app.start("writer", "one")
        await asyncio.sleep(23.9 * HOUR)
        assert (await types_of(session))["turn.failed"] == 0
        await asyncio.sleep(0.2 * HOUR)
        assert known((await session.wait()).error).code == PROVIDER_AWAY

        provider.mend()
        assert (await (await session.retry()).result()).output == "All is well."

    live_through(story, writer)


def test_a_child_that_gives_its_provider_up_has_failed_and_its_parent_goes_on() -> None:
    def parent_and_child(provider: SimulatedProvider) -> list[Agent[Any, Any]]:
        @tool(on_interrupt="rerun")
        async def hand_on(ctx: Context[Any]) -> str:
            return str(await ctx.agent("writer").ask("Write it."))

        def script(request: ModelRequest) -> ScriptedReply:
            last = request.view.messages[-1]
            return say(last.results[0].text) if isinstance(last, ToolOutputs) else call("hand_on")

        editor: Agent[Any, Any] = Agent("editor", ScriptedModel(script), tools=[hand_on])
        return [editor, *writer(provider, ModelOptions(provider_patience=HOUR))]

    async def story(app: Outlast, provider: SimulatedProvider) -> None:
        provider.outage = OUTAGES["fails"]
        session = await app.start("editor", "go")
        await asyncio.sleep(1.1 * HOUR)

        result = await session.wait()
        assert result.status == "completed"
        assert PROVIDER_AWAY in (result.output or "")
        [child] = [each for each in await app.sessions() if each.parent]
        assert child.over == "failed"

    live_through(story, parent_and_child)
