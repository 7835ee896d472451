"""Calls that wait for their place: tool lanes, limits, rates, full queues, shared slices."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from known import known
from scene import FAST, Watched, at_standstill, results_of, running, seen, the, types_of, until

from outlast import (
    Agent,
    Context,
    DedupeKey,
    Limit,
    Limits,
    ModelOptions,
    Outlast,
    QueueLimits,
    Token,
    WorkerSettings,
    tool,
)
from outlast import runtime as workshop
from outlast.agents.runtime.thread import ToolThreads
from outlast.clock import Clock
from outlast.engine import maintenance
from outlast.errors import InvalidDefinition, InvalidName, QueueFull
from outlast.log.verify import verify
from outlast.store import Permit, PermitRequest, Refused, Store
from outlast.stores.sqlite import MemoryStore, SqliteStore
from outlast.testing import ScriptedModel, call, calls, say
from outlast.testing.wrapped_store import WrappedStore


@pytest.fixture(params=["memory://", "sqlite:///limits.db"])
def store(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return request.param


class Together:
    """Counts who is inside at the same time, by key, and the most there ever were."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[Any] = []

    async def visit(self, key: str) -> None:
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        self.order.append(key)
        for _ in range(5):
            await asyncio.sleep(0)
        self.now[key] -= 1


def worker_of(tools: Any, name: Any = "a", times: Any = 1, **options: Any) -> Any:
    def script(request: Any) -> Any:
        done = len(request.view.messages) // 2
        return calls(*((t.name, {"path": "x"}) for t in tools)) if done < times else say("Done.")

    return Agent(name, ScriptedModel(script), tools=tools, **options)


async def test_a_tool_lane_lets_one_call_run_at_a_time_across_sessions_and_workers(
    store: Any,
) -> None:
    inside = Together()

    @tool(mutex="workspace:{path}")
    async def edit(path: str) -> str:
        """Edit."""
        await inside.visit(path)
        return "edited"

    def script(request: Any) -> Any:
        path = request.view.messages[0].content[0].text
        return calls(("edit", {"path": path})) if len(request.view.messages) < 5 else say("Done.")

    agent = Agent("a", ScriptedModel(script), tools=[edit])
    async with AsyncExitStack() as stack:
        shared = await stack.enter_async_context(running(agent, store=store))
        if store != "memory://":
            await stack.enter_async_context(running(agent, store=store))
        sessions = [await shared.start(agent, path) for path in "xyxyxyxy"]
        results = [await session.wait() for session in sessions]
        assert {result.status for result in results} == {"completed"}
        assert inside.most == {"x": 1, "y": 1}
        assert Counter(inside.order) == {"x": 8, "y": 8}
        assert await shared.store.limit.permits() == []
        assert not await verify(shared.store, sessions[0].id)


async def test_a_session_that_waits_for_a_tool_lane_holds_nothing_and_says_what_it_waits_for() -> (
    None
):
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(mutex="only")
    async def hold() -> str:
        """Hold."""
        begun.set()
        await go_on.wait()
        return "held"

    def script(request: Any) -> Any:
        return say("Done.") if len(request.view.messages) > 1 else calls(("hold", {}))

    agent = Agent("a", ScriptedModel(script), tools=[hold])
    async with running(agent) as app:
        first = await app.start(agent, "Go")
        await begun.wait()
        second = await app.start(agent, "Go")
        waiting = await until(second, "session.waiting")
        assert waiting.data["wait"] == ("limit",)
        assert "tool.started" not in await types_of(second)
        lanes = {
            lane.session_id: lane
            for lane in known(await app.store.listing.session(second.id)).lanes
        }
        assert lanes[second.id].worker == ""
        (row,) = await app.store.limit.permits(second.id)
        assert (row.name, row.held, row.ahead) == ("mutex:default:only", False, 0)
        go_on.set()
        assert (await second.wait()).output == "Done."
        assert (await first.wait()).output == "Done."
        assert "session.resumed" in await types_of(second)


async def test_a_permit_stays_with_a_call_whose_worker_died_until_it_has_an_outcome(
    tmp_path: Path,
) -> None:
    store = f"sqlite:///{tmp_path}/limits.db"
    begun, inside = asyncio.Event(), Together()

    @tool(mutex="{path}", idempotent=True)
    async def edit(ctx: Context, path: str) -> str:
        """Edit."""
        if ctx.attempt == 1 and not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        await inside.visit(path)
        return "edited"

    agent = worker_of([edit])
    first = Outlast([agent], store=store, worker=FAST)
    await first.open()
    one = await first.start(agent, "Go")
    await begun.wait()
    other = await first.start(agent, "Go")
    await until(other, "session.waiting")
    for task in list(known(first.worker)._tasks.values()):
        task.cancel()
    await first.store.close()
    async with running(agent, store=store, settings=FAST) as second:
        for session in (one, other):
            result = await (await second.session(session.id)).wait()
            assert result.output == "Done."
        assert inside.most == {"x": 1}
        assert await second.store.limit.permits() == []


async def test_a_limit_on_a_tool_holds_across_sessions_and_parallel_calls(store: Any) -> None:
    inside = Together()

    @tool(limit=Limit(concurrency=2))
    async def search(path: str) -> str:
        """Search."""
        await inside.visit("search")
        return "found"

    def script(request: Any) -> Any:
        wanted = [("search", {"path": str(n)}) for n in range(4)]
        return say("Done.") if len(request.view.messages) > 1 else calls(*wanted)

    agent = Agent("a", ScriptedModel(script), tools=[search])
    async with running(agent, store=store) as app:
        sessions = [await app.start(agent, "Go") for _ in range(5)]
        assert {(await session.wait()).output for session in sessions} == {"Done."}
    assert inside.most["search"] == 2
    assert len(inside.order) == 20


async def test_a_limit_on_a_model_holds_for_all_agents_that_use_it(store: Any) -> None:
    inside = Together()

    class Counted(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            await inside.visit("model")
            async for piece in super().stream(request):
                yield piece

    one, two = (
        Agent(
            name,
            Counted(lambda _: say("Hi.")),
            model_options=ModelOptions(limit=Limit(concurrency=1)),
        )
        for name in ("one", "two")
    )
    async with running(one, two, store=store) as app:
        sessions = [await app.start(agent, "Go") for agent in (one, two) * 4]
        assert {(await session.wait()).output for session in sessions} == {"Hi."}
    assert inside.most["model"] == 1


async def test_a_lane_keeps_its_place_in_the_queue_for_a_model_whatever_it_is_called(
    store: Any,
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    class Held(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            asked.set()
            await go_on.wait()
            async for piece in super().stream(request):
                yield piece

    agent = Agent(
        "a", Held(lambda _: say("Hi.")), model_options=ModelOptions(limit=Limit(concurrency=1))
    )
    async with running(agent, store=store) as app:
        session = await app.start(agent, "Go")
        await asked.wait()
        second = await session.send("Go", lane="my.crew")
        await until(session, "session.waiting")
        assert len(await app.store.limit.permits()) == 2
        go_on.set()
        assert (await second.result()).output == "Hi."


async def test_a_rate_spreads_the_turns_of_an_agent() -> None:
    agent = Agent(
        "a", ScriptedModel(lambda _: say("Hi.")), limits=Limits(turns=Limit(rate=2, per=7200))
    )
    hour = timedelta(hours=1)
    async with at_standstill(agent) as (app, clock):
        sessions = [await app.start(agent, "Go") for _ in range(4)]
        results = asyncio.as_completed([session.wait() for session in sessions])
        for passes in (timedelta(), timedelta(), hour, hour):
            clock.advance(passes // timedelta(milliseconds=1))
            assert (await next(results)).output == "Hi."
        starts = sorted([(await the(s, "turn.started"))[0].at for s in sessions])
        assert [at - starts[0] for at in starts] == [timedelta(), timedelta(), hour, 2 * hour]


async def test_no_more_sessions_of_an_agent_are_at_work_than_its_limit_says(store: Any) -> None:
    inside = Together()

    @tool
    async def think(path: str) -> str:
        """Think."""
        await inside.visit("agent")
        return "thought"

    agent = worker_of([think], limits=Limits(turns=Limit(concurrency=2)))
    async with running(agent, store=store) as app:
        sessions = [await app.start(agent, "Go") for _ in range(6)]
        assert {(await session.wait()).output for session in sessions} == {"Done."}
    assert inside.most["agent"] <= 2


async def test_a_turn_that_is_cancelled_while_it_waits_leaves_the_queue(store: Any) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @tool(mutex="only")
    async def hold() -> str:
        """Hold."""
        begun.set()
        await go_on.wait()
        return "held"

    def script(request: Any) -> Any:
        return say("Done.") if len(request.view.messages) > 1 else calls(("hold", {}))

    agent = Agent("a", ScriptedModel(script), tools=[hold])
    async with running(agent, store=store) as app:
        first = await app.start(agent, "Go")
        await begun.wait()
        second = await app.start(agent, "Go")
        await until(second, "session.waiting")
        third = await app.start(agent, "Go")
        await until(third, "session.waiting")
        await second.cancel("not needed")
        assert (await second.wait()).status == "cancelled"
        assert [row.session_id for row in await app.store.limit.permits()] == [first.id, third.id]
        go_on.set()
        assert (await third.wait()).output == "Done."


async def test_a_tool_that_waits_for_a_human_gives_its_place_to_others() -> None:
    @tool(mutex="only")
    async def sign(ctx: Context) -> str:
        """Sign."""
        answer = await ctx.ask("Sign?", ["yes", "no"])
        return answer.option

    def script(request: Any) -> Any:
        return say("Done.") if len(request.view.messages) > 1 else calls(("sign", {}))

    agent = Agent("a", ScriptedModel(script), tools=[sign])
    async with running(agent) as app:
        first, second = [await app.start(agent, "Go") for _ in range(2)]
        asked = [(await session.wait()).requests[0] for session in (first, second)]
        for session, request in zip((first, second), asked, strict=True):
            await session.answer(request.request_id, "yes")
        assert (await first.wait()).output == (await second.wait()).output == "Done."


async def test_a_session_whose_queue_is_full_refuses_a_message_and_says_so(store: Any) -> None:
    go_on = asyncio.Event()

    @tool
    async def hold() -> str:
        """Hold."""
        await go_on.wait()
        return "held"

    def script(request: Any) -> Any:
        return calls(("hold", {})) if len(request.view.messages) == 1 else say("Done.")

    agent = Agent("a", ScriptedModel(script), tools=[hold])
    async with running(agent, store=store, queue_limits=QueueLimits(session=2)) as app:
        session = await app.start(agent, "Go")
        await until(session, "tool.started")
        for text in ("one", "two"):
            await session.send(text)
        with pytest.raises(QueueFull, match="2 messages wait"):
            await session.send("three")
        go_on.set()
        await session.wait()
        await session.send("three")
        assert (await session.wait()).output == "Done."


class Budget(msgspec.Struct):
    cents: int


async def test_updates_by_lanes_in_different_workers_lose_nothing(tmp_path: Path) -> None:
    @tool
    async def earn(ctx: Context) -> int:
        """Earn."""
        ctx.session.mutate(Budget).update(lambda b: Budget((b.cents if b else 0) + 1))
        return 1

    def script(request: Any) -> Any:
        return calls(("earn", {})) if len(request.view.messages) < 40 else say("Done.")

    agent = Agent("a", ScriptedModel(script), tools=[earn])
    url = f"sqlite:///{tmp_path}/shared.db"
    one = running(agent, store=url, settings=msgspec.structs.replace(FAST, lanes=("main",)))
    two = running(agent, store=url, settings=msgspec.structs.replace(FAST, lanes=("side",)))
    async with one as app, two:
        session = await app.start(agent, "Go")
        await session.send("Go", lane="side")
        await session.wait()
        earned = len(await the(session, "tool.completed"))
        assert earned > 30
        assert await session.query(Budget).latest() == Budget(earned)
        assert not await verify(app.store, session.id)


class LateTransactions(WrappedStore):
    """A store whose transactions begin when the test lets them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.wanted, self.go = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> Any:
        self.wanted.set()
        await self.go.wait()
        async with self.inner.log.transaction(limit) as transaction:
            yield transaction


async def test_an_update_in_a_transaction_is_made_of_what_another_lane_changed_just_before(
    tmp_path: Path,
) -> None:
    @tool(transactional=True)
    async def earn(ctx: Context) -> int:
        """Earn."""
        await ctx.tx.fetch("SELECT 1")
        ctx.session.mutate(Budget).update(lambda b: Budget((b.cents if b else 0) + 1))
        return 1

    def script(request: Any) -> Any:
        return calls(("earn", {})) if len(request.view.messages) < 2 else say("Done.")

    agent = Agent("a", ScriptedModel(script), tools=[earn])
    late = LateTransactions(SqliteStore(tmp_path / "shared.db"))
    main = msgspec.structs.replace(FAST, lanes=("main",))
    side = msgspec.structs.replace(FAST, lanes=("side",))
    async with (
        running(agent, store=f"sqlite:///{tmp_path}/shared.db", settings=main) as app,
        running(agent, store=late, settings=side),
    ):
        session = await app.start(agent, "Go", lane="side")
        await late.wanted.wait()
        assert (await (await session.send("Go")).result()).output == "Done."
        late.go.set()
        await session.wait()

        assert await session.query(Budget).latest() == Budget(2)
        assert not await verify(app.store, session.id)


def test_a_tool_lane_must_name_arguments_of_the_tool() -> None:
    with pytest.raises(InvalidDefinition, match="names place, and its arguments are path"):

        @tool(mutex="{place}")
        async def edit(path: str) -> str:
            """Edit."""
            return path


@pytest.mark.parametrize("wrong", [{}, {"concurrency": -1}, {"rate": "x"}, {"rate": 1, "per": 0}])
def test_a_limit_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidDefinition):
        Limit(**wrong)


async def test_a_call_that_waits_and_goes_on_at_once_keeps_its_place(store: Any) -> None:
    inside = Together()

    @tool(mutex="only")
    async def pause(ctx: Context) -> str:
        """Pause."""
        await ctx.sleep(timedelta(milliseconds=1))
        await inside.visit("only")
        return "paused"

    def script(request: Any) -> Any:
        done = len(request.view.messages) // 2
        return calls(("pause", {}), ("pause", {})) if done < 3 else say("Done.")

    agent = Agent("a", ScriptedModel(script), tools=[pause])
    async with running(agent, store=store) as app:
        sessions = [await app.start(agent, "Go") for _ in range(4)]
        assert {(await session.wait()).output for session in sessions} == {"Done."}
        assert inside.most["only"] == 1
        assert await app.store.limit.permits() == []


RUBBISH = ["", "a\0b", "x" * 3_000_000, "{path}", "é\n", "'; DROP TABLE lanes; --"]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: Any, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/rubbish.db"
    return request.getfixturevalue("postgres_url")


async def test_whatever_a_model_says_makes_a_key_that_can_be_stored(database: Any) -> None:
    @tool(
        mutex="{path}", idempotency_key=DedupeKey(lambda args: args["path"] + "\ud800", "session")
    )
    async def edit(path: str) -> int:
        """Edit."""
        return len(path)

    def script(request: Any) -> Any:
        wanted = [("edit", {"path": path}) for path in RUBBISH]
        return say("Done.") if len(request.view.messages) > 1 else calls(*wanted)

    agent = Agent("a", ScriptedModel(script), tools=[edit])
    async with running(agent, store=database) as app:
        session = await app.start(agent, "Go")
        async with asyncio.timeout(60):
            assert (await session.wait()).output == "Done."
        ended = await the(session, "tool.completed")
        assert [event.data["value"] for event in ended] == [len(path) for path in RUBBISH]
        assert await app.store.limit.permits() == []


async def test_a_token_that_no_database_can_keep_is_refused(database: Any) -> None:
    @tool
    async def move(ctx: Context, token: str) -> str:
        """Move."""
        await ctx.session.set_continuation_token(token)
        return "moved"

    def script(request: Any) -> Any:
        wanted = [("move", {"token": token}) for token in ("", "a\0b", "x" * 300)]
        return say("Done.") if len(request.view.messages) > 1 else calls(*wanted)

    agent = Agent("a", ScriptedModel(script), tools=[move])
    async with running(agent, store=database) as app:
        session = await app.start(agent, "Go")
        assert (await session.wait()).output == "Done."
        failed = await the(session, "tool.failed")
        assert [event.data["error"]["code"] for event in failed] == ["INVALID_NAME"] * 3
        with pytest.raises(InvalidName):
            await app.send(Token("token", agent), "Hi", tenant="a\0b")


async def test_a_call_that_no_worker_comes_for_loses_its_place_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "PERMIT_KEPT", 50)
    monkeypatch.setattr(maintenance.StalePermitReaper, "interval", 0.05)
    began, go_on = asyncio.Event(), asyncio.Event()

    @tool(limit=Limit(concurrency=1))
    async def dig(path: str) -> str:
        """Dig."""
        began.set()
        await go_on.wait()
        return "dug"

    store = MemoryStore()
    old, new = worker_of([dig], "old"), worker_of([dig], "new")
    agents = [old, new]
    async with (
        Outlast(agents, store=store, worker=WorkerSettings(agents=("new",))) as app,
        Outlast(agents, store=store, worker=WorkerSettings(agents=("old",))) as leaving,
    ):
        await leaving.start(old, "x")
        await began.wait()
        await leaving.start(old, "x")
        while len(await store.limit.permits()) < 2:  # noqa: ASYNC110 - a queue has no event
            await asyncio.sleep(0)
        known(leaving.worker).drain()
        go_on.set()
        await known(leaving.worker).until_stopped()

        session = await app.start(new, "x")
        async with asyncio.timeout(60):
            assert (await session.wait()).output == "Done."
        assert [permit.held for permit in await store.limit.permits()] == [False]


async def test_a_call_whose_lane_cannot_be_named_is_a_failure_that_the_model_sees() -> None:
    ran: list[int | None] = []

    @tool(mutex="order-{n:05d}")
    async def book(n: int | None = None) -> str:
        ran.append(n)
        return "booked"

    script = [call("book"), call("book", n=7), say("done")]
    model = Watched(script)
    async with running(Agent("a", model, tools=[book])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        failed, booked = await results_of(session)
        assert failed.startswith("TOOL_ERROR: TypeError")
        assert booked == "booked"
        assert ran == [7]
        assert len(model.requests) == 3


# Threads, of which a worker has only so many


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workshop, "ToolThreads", lambda: ToolThreads(1))


class AtOnce(Clock):
    """Real time, and no pause before another try."""

    def jitter(self, most: float) -> float:
        return 0.0


class Counting(WrappedStore):
    """A store that counts how often permits are asked for."""

    asked = 0

    async def acquire(self, wishes: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        self.asked += 1
        return await super().acquire(wishes)


@pytest.mark.usefixtures("one_thread")
async def test_calls_that_wait_for_a_thread_and_a_permit_do_not_pass_the_thread_round() -> None:
    store, done, begun = Counting(MemoryStore()), asyncio.Event(), asyncio.Event()

    @tool(mutex="room")
    async def hold() -> None:
        begun.set()
        await done.wait()

    @tool(mutex="room")
    def work(n: int) -> int:
        return n

    holder = Agent("holder", ScriptedModel([call("hold"), say("held")]), tools=[hold])
    script = [calls(*(("work", {"n": n}) for n in range(4))), say("done")]
    worker = Agent("worker", ScriptedModel(script), tools=[work])
    async with running(holder, worker, store=store) as app:
        await app.start("holder", "go")
        await begun.wait()
        session = await app.start("worker", "go")
        await seen(session, "tool.requested", 4)
        before = store.asked
        await asyncio.sleep(0.3)
        assert store.asked - before < 5
        done.set()
        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["0", "1", "2", "3"]


@pytest.mark.usefixtures("one_thread")
async def test_a_call_that_waits_for_anothers_key_takes_no_thread_from_it() -> None:
    release, ran = threading.Event(), []

    @tool
    def block() -> None:
        release.wait(60)

    @tool
    async def linger() -> None:
        await asyncio.Event().wait()

    @tool(max_attempts=4, idempotent=True, idempotency_key=DedupeKey(lambda _: "k", "tenant"))
    def pay() -> str:
        ran.append("pay")
        if len(ran) == 1:
            raise RuntimeError("flaky")
        return "paid"

    def doer(name: str, *steps: Any) -> Agent[None, str]:
        return Agent(name, ScriptedModel([*steps, say("done")]), tools=[block, linger, pay])

    agents = [
        doer("blocks", call("block")),
        doer("pays", call("pay")),
        doer("waits", calls(("linger", {}), ("pay", {}))),
    ]
    async with running(*agents, clock=AtOnce()) as app:
        blocking = await app.start("blocks", "go")
        await until(blocking, "tool.started")
        paying = await app.start("pays", "go")
        await seen(paying, "tool.requested")
        waiting = await app.start("waits", "go")
        await seen(waiting, "tool.started")
        release.set()

        assert (await asyncio.wait_for(paying.wait(), 30)).output == "done"
        assert ran == ["pay", "pay"]
        await waiting.cancel()
        await waiting.wait()


@pytest.mark.parametrize("most", [2**31, 2**80])
def test_a_count_that_not_every_store_can_keep_is_refused_where_it_is_given(most: int) -> None:
    for given in ({"concurrency": most}, {"rate": most}):
        with pytest.raises(InvalidDefinition, match="at most 2,147,483,647"):
            Limit(**given)
    with pytest.raises(InvalidDefinition, match="at most"):
        WorkerSettings(concurrency=most)
