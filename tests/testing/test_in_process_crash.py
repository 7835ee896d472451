"""A worker dies before or after every single commit of a rich scenario; another goes on.

Faults are injected by wrapping the store: nothing in production code knows of them.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct

from outlast import Agent, Context, Outlast, Session, WorkerSettings, tool
from outlast.agents.model.client import ModelRequest
from outlast.core import record as r
from outlast.core.record import Entry
from outlast.errors import StoreUnavailable
from outlast.store import Commit, Committed, Refused, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, calls, say
from outlast.testing.wrapped_store import WrappedStore

FAST = {"poll": 0.005, "watch": 0.005, "grace": 0.05, "stop_grace": 0.05, "flush": 0.0}


class FaultyStore(WrappedStore):
    """A memory store as one process sees it, with a fault at one of its commits.

    `fault`: the process dies `before` or `after` the commit, or loses the connection `without`
    or `with` the commit written.
    """

    def __init__(self, store: Store, fault: str, number: int) -> None:
        super().__init__(store)
        self._fault = fault
        self._left = number
        self.commits = 0
        self.struck = asyncio.Event()
        self._dead = False

    async def close(self) -> None:
        """The store outlives this process."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        if self._dead:
            await asyncio.Event().wait()
        self.commits += 1
        self._left -= 1
        if self._left != 0:
            return await super().commit(commits)
        self.struck.set()
        if self._fault in ("after", "with"):
            await super().commit(commits)
        if self._fault in ("with", "without"):
            raise StoreUnavailable("the connection was lost")
        self._dead = True
        await asyncio.Event().wait()
        raise AssertionError("nobody wakes the dead")


@dataclass
class World:
    """What was really done, by call."""

    model: Counter[str] = field(default_factory=Counter)
    tools: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)


class Note(Struct):
    text: str


SCRIPT = [
    calls(("find", {}), ("charge", {}), ("pay", {}), text="Let me see."),
    calls(("survey", {}), ("nap", {})),
    ScriptedReply(text="All is done, and well.", chunks=3, pace=0.001),
    call("find"),
    say("Again."),
]


def agent_of(world: World) -> Agent[Any, Any]:
    def asked(request: ModelRequest) -> None:
        world.model[request.call_id] += 1

    @tool(readonly=True)
    async def find(ctx: Context) -> str:
        world.tools[ctx.call_id] += 1
        return "found"

    @tool
    async def charge(ctx: Context) -> str:
        world.tools[ctx.call_id] += 1
        ctx.session.mutate(Note).append(Note("charged"))
        return "charged"

    @tool(approval="always")
    async def pay(ctx: Context) -> str:
        world.tools[ctx.call_id] += 1
        ctx.emit("paid")
        return "paid"

    @tool(idempotent=True)
    async def survey(ctx: Context) -> str:
        async def count() -> int:
            world.steps[ctx.call_id] += 1
            return world.steps[ctx.call_id]

        await ctx.step(count, name="count")
        answer = await ctx.ask("Well?")
        world.tools[ctx.call_id] += 1
        return answer.text

    @tool(idempotent=True)
    async def nap(ctx: Context) -> str:
        await ctx.sleep(timedelta(milliseconds=1))
        world.tools[ctx.call_id] += 1
        return "rested"

    return Agent(
        "a", ScriptedModel(SCRIPT, on_request=asked), tools=[find, charge, pay, survey, nap]
    )


async def be_the_human(app: Outlast) -> Session[Any]:
    """Say something, answer what is asked, say something more, and wait for the end."""
    session = await app.start("a", "go")
    while (result := await session.wait()).status == "waiting":
        for request in result.requests:
            option, text = ("approve", None) if request.kind == "approval" else (None, "fine")
            await session.answer(request.request_id, option, text=text)
    await session.send("again")
    await session.wait()
    return session


@dataclass
class Story:
    """One run: what the log says, what was really done, and how both stood at the fault."""

    log: list[Entry]
    world: World
    commits: int
    struck: bool
    known: list[Entry]
    done_by_then: World
    outputs: list[str | None]
    notes: int


async def tell(fault: str = "", number: int = 0) -> Story:
    """Run the scenario with a fault at one commit, to its end."""
    store, world = MemoryStore(), World()
    agent = agent_of(world)
    outside = Outlast([agent], store=store, worker=None)
    human = asyncio.create_task(be_the_human(outside))
    faulty = FaultyStore(store, fault, number)
    first = Outlast([agent], store=faulty, worker=WorkerSettings(name="w1", **FAST))  # type: ignore[arg-type]
    second = Outlast([agent], store=store, worker=WorkerSettings(name="w2", **FAST))  # type: ignore[arg-type]
    bystanders = asyncio.all_tasks()
    await first.open()
    strike = asyncio.create_task(faulty.struck.wait())
    await asyncio.wait({human, strike}, return_when=asyncio.FIRST_COMPLETED)
    known, done_by_then = [], World()
    if fault in ("before", "after") and faulty.struck.is_set():
        await kill(asyncio.all_tasks() - bystanders - {strike})
        known = await everything(store)
        done_by_then = World(+world.model, +world.tools, +world.steps)
        store.declare_dead("w1")
        await second.open()
    strike.cancel()
    session = await asyncio.wait_for(human, 20)
    await second.close()
    await first.close()
    handle = await outside.session(session.id)
    said = [d for d in await store.listing.deliveries(session.id) if d.kind == "message"]
    turns = [await handle.result_of(d.delivery_id) for d in said]
    return Story(
        log=await everything(store),
        world=world,
        commits=faulty.commits,
        struck=faulty.struck.is_set(),
        known=known,
        done_by_then=done_by_then,
        outputs=[turn.output for turn in turns],
        notes=len(await handle.query(Note).all()),
    )


async def kill(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def everything(store: MemoryStore) -> list[Entry]:
    sessions = await store.listing.sessions()
    return (
        list((await store.log.read(sessions[0].session_id, 0, 10_000)).entries) if sessions else []
    )


# What must be true of every story


def outcomes(log: Sequence[Entry]) -> dict[str, list[r.AnyRecord]]:
    """The final outcomes of each tool call."""
    found: dict[str, list[r.AnyRecord]] = {}
    for entry in log:
        e = entry.record
        match e:
            case (
                r.ToolCompleted()
                | r.ToolDenied()
                | r.ToolFailed(again_at=0)
                | r.ToolInterrupted(final=True)
            ):
                found.setdefault(e.call_id, []).append(e)
    return found


def answered(log: Sequence[Entry]) -> set[str]:
    return {e.record.call_id for e in log if isinstance(e.record, r.MessageCompleted)}


def check_log(story: Story) -> None:
    """Nothing is missing, and nothing is there twice."""
    log = story.log
    assert [e.offset for e in log] == list(range(1, len(log) + 1))
    queued = [e.record.delivery_id for e in log if isinstance(e.record, r.DeliveryQueued)]
    settled = [e.record.delivery_id for e in log if isinstance(e.record, r.DeliverySettled)]
    assert sorted(queued) == sorted(settled)
    wanted = [e.record.call_id for e in log if isinstance(e.record, r.ToolRequested)]
    ends = outcomes(log)
    assert sorted(wanted) == sorted(ends)
    assert all(len(found) == 1 for found in ends.values())
    started = Counter(e.record.call_id for e in log if isinstance(e.record, r.MessageCompleted))
    assert set(started.values()) == {1}
    requests = [e.record.request_id for e in log if isinstance(e.record, r.RequestOpened)]
    resolved = [e.record.request_id for e in log if isinstance(e.record, r.RequestResolved)]
    assert len(requests) == len(set(requests))
    assert sorted(requests) == sorted(resolved)


def check_effects(story: Story) -> None:
    """What was recorded never ran again, and what may not be repeated ran at most once."""
    for call_id in outcomes(story.known):
        assert story.world.tools[call_id] == story.done_by_then.tools[call_id]
    for call_id in answered(story.known):
        assert story.world.model[call_id] == story.done_by_then.model[call_id]
    steps = {e.record.call_id for e in story.known if isinstance(e.record, r.ToolStepRecorded)}
    for call_id in steps:
        assert story.world.steps[call_id] == story.done_by_then.steps[call_id]
    for call_id, [end] in outcomes(story.log).items():
        tool_name = next(
            e.record.tool
            for e in story.log
            if isinstance(e.record, r.ToolRequested) and e.record.call_id == call_id
        )
        if tool_name in ("charge", "pay"):
            assert story.world.tools[call_id] <= 1
            if isinstance(end, r.ToolCompleted):
                assert story.world.tools[call_id] == 1
    charged = [c for c in story.log if isinstance(c.record, r.StateChanged)]
    assert story.notes == len(charged) <= 1


def same_facts(story: Story, undisturbed: Story) -> None:
    assert story.outputs == undisturbed.outputs
    assert set(outcomes(story.log)) == set(outcomes(undisturbed.log))
    assert answered(story.log) == answered(undisturbed.log)


# The tests


async def test_the_scenario_itself_does_everything_once() -> None:
    story = await tell()

    check_log(story)
    assert story.outputs == ["All is done, and well.", "Again."]
    assert set(story.world.model.values()) == {1}
    assert set(story.world.tools.values()) == {1}
    assert story.notes == 1
    assert story.commits > 10


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_a_worker_may_die_around_any_commit(fault: str) -> None:
    undisturbed = await tell()
    number, struck = 0, True
    while struck:
        number += 1
        story = await tell(fault, number)
        struck = story.struck

        check_log(story)
        check_effects(story)
        same_facts(story, undisturbed)
        again = sum(story.world.model.values()) - sum(undisturbed.world.model.values())
        assert again <= 1, f"one crash at commit {number} cost {again} model calls"
    assert number > 10


@pytest.mark.parametrize("fault", ["without", "with"])
async def test_a_lost_connection_around_any_commit_costs_nothing(fault: str) -> None:
    undisturbed = await tell()
    number, struck = 0, True
    while struck:
        number += 1
        story = await tell(fault, number)
        struck = story.struck

        check_log(story)
        same_facts(story, undisturbed)
        assert story.world == undisturbed.world
    assert number > 10
