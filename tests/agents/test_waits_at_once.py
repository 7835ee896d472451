"""A tool that waits for several things at once: all begin at once, the first to come wakes it."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from scene import agent, at_standstill, results_of, running, seen, the, until

from outlast import Agent, Context, Outlast, Retry, ToolError, tool
from outlast.core.instant import date_of
from outlast.errors import RequestClosed
from outlast.log.verify import verify
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import START
from outlast.testing.crash_everywhere import crash_everywhere
from outlast.testing.ledger import Ledger
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say
from outlast.testing.wrapped_store import WrappedStore

T = TypeVar("T")
Juggle = Callable[[Context[Any]], Awaitable[Any]]
HOUR = 3_600_000
AN_HOUR = timedelta(hours=1)


def helper(name: str, *script: ScriptedReply, **options: Any) -> Agent[Any, Any]:
    return Agent(name, ScriptedModel(list(script) or [say(f"{name}'s")]), **options)


def juggler(juggle: Juggle, **options: Any) -> Agent[Any, Any]:
    """An agent named `a` whose tool does several things at once."""

    @tool(**{"on_interrupt": "rerun", **options})
    async def both(ctx: Context[Any]) -> Any:
        return await juggle(ctx)

    return agent([call("both"), say("done")], tools=[both])


@tool(approval="always")
async def pay() -> str:
    return "paid"


def note(where: list[T], what: T) -> T:
    """Add to a list what a step did, and return it."""
    where.append(what)
    return what


def slow() -> Agent[Any, Any]:
    """An agent that asks a human before it answers."""
    return helper("slow", call("pay"), say("slow's"), tools=[pay])


async def asked(ctx: Context[Any]) -> str:
    return (await ctx.ask("Well?", timeout=timedelta(days=1))).text


async def chained(ctx: Context[Any]) -> str:
    return str(await ctx.agent("y").ask(f"after {await ctx.agent('x').ask('go')}"))


# What is begun


@pytest.mark.parametrize("is_asked_first", [True, False])
@pytest.mark.parametrize("is_answered_first", [True, False])
async def test_a_question_and_an_agent_are_asked_at_once(
    is_asked_first: bool, is_answered_first: bool
) -> None:
    async def juggle(ctx: Context[Any]) -> list[str]:
        both = [asked(ctx), ctx.agent("slow").ask("go")]
        return sorted(await ctx.gather(*(both if is_asked_first else reversed(both))))

    async with running(juggler(juggle), slow()) as app:
        session = await app.start("a", "go")
        requests = {each.data["kind"]: each for each in await seen(session, "request.opened", 2)}
        kinds = ["question", "approval"] if is_answered_first else ["approval", "question"]
        for kind in kinds:
            said: dict[str, Any] = {"text": "yes"} if kind == "question" else {"option": "approve"}
            await session.answer(requests[kind].data["request_id"], **said)
            await seen(session, "tool.woken", kinds.index(kind) + 1)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["slow\'s","yes"]']
        assert len(await the(session, "request.opened")) == 2
        assert len(await the(session, "subagent.called")) == 1
        [waiting, *_] = await the(session, "tool.waiting")
        assert len(waiting.data["also"]) == 1
        assert not await verify(app.store, session.id)


async def test_a_chain_goes_on_while_somebody_else_is_waited_for() -> None:
    async def juggle(ctx: Context[Any]) -> list[str]:
        return list(await ctx.gather(asked(ctx), ctx.agent("slow").ask("go"), chained(ctx)))

    async with running(juggler(juggle), slow(), helper("x"), helper("y")) as app:
        session = await app.start("a", "go")
        ended = await seen(session, "subagent.completed", 2)
        assert [event.data["value"] for event in ended] == ["x's", "y's"]
        for request in await seen(session, "request.opened", 2):
            is_approval = request.data["kind"] == "approval"
            said: dict[str, Any] = {"option": "approve"} if is_approval else {"text": "yes"}
            await session.answer(request.data["request_id"], **said)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["yes","slow\'s","y\'s"]']
        assert not await verify(app.store, session.id)


async def test_a_question_is_asked_once_and_runs_out_when_it_said() -> None:
    async def juggle(ctx: Context[Any]) -> list[str]:
        return list(await ctx.gather(asked(ctx), chained(ctx)))

    async with at_standstill(juggler(juggle), helper("x"), helper("y")) as (app, clock):
        session = await app.start("a", "go")
        await seen(session, "subagent.completed", 2)
        await seen(session, "tool.waiting", 3)
        clock.advance(24 * HOUR - 1)
        assert await the(session, "request.expired") == []
        clock.advance(1)
        await seen(session, "turn.completed")

        [request] = await the(session, "request.opened")
        assert request.data["expires_at"] == date_of(START + 24 * HOUR)
        assert await results_of(session) == ["TOOL_ERROR: nobody answered in time"]


# Whose wait is whose


async def test_branches_that_do_the_same_are_told_apart_by_their_names() -> None:
    ordered: dict[str, str] = {}

    async def juggle(ctx: Context[Any]) -> list[str]:
        async def buy(item: str) -> str:
            slow = "tea" if ctx.attempt == 1 else "rice"
            await asyncio.sleep(0.02 if item == slow else 0)
            hook = await ctx.callback("done", timeout=timedelta(days=1))
            await ctx.step(ordered.__setitem__, item, hook.url, name="order")
            return f"{item}: {(await hook.wait()).text}"

        return list((await ctx.gather(tea=buy("tea"), rice=buy("rice"))).values())

    async with running(juggler(juggle), public_url="https://agents.example") as app:
        session = await app.start("a", "go")
        await seen(session, "tool.waiting")
        for item, url in ordered.items():
            await app.callbacks.receive(
                url.rpartition("/")[2], f"{item} came".encode(), "text/plain"
            )

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["tea: tea came","rice: rice came"]']


async def test_sleeps_are_told_apart_by_their_branches() -> None:
    async def juggle(ctx: Context[Any]) -> list[str]:
        async def nap(name: str, hours: int) -> str:
            await asyncio.sleep(0.02 if name == "long" else 0)
            await ctx.sleep(hours * AN_HOUR)
            return str(await ctx.step(lambda: note(over, name), name=f"{name} is over"))

        return list(await ctx.gather(nap("long", 10), nap("short", 1)))

    over: list[str] = []
    async with at_standstill(juggler(juggle)) as (app, clock):
        session = await app.start("a", "go")
        await seen(session, "timer.set", 2)
        clock.set(START + HOUR)
        await seen(session, "tool.waiting", 2)
        assert over == ["short"]
        clock.set(START + 10 * HOUR)

        assert (await session.wait()).output == "done"
        assert over == ["short", "long"]


# What is not there yet is no outcome


async def by_gather(ctx: Context[Any]) -> list[Any]:
    return list(await ctx.gather(*(ctx.agent(name).ask("go") for name in ("slow", "x"))))


async def by_a_nested_race(ctx: Context[Any]) -> list[Any]:
    came = await ctx.first(both=nested(ctx), late=ctx.sleep(AN_HOUR))
    return came.value or ["nobody"]


async def nested(ctx: Context[Any]) -> list[Any]:
    async def rest() -> list[Any]:
        return list(await ctx.gather(ctx.agent("x").ask("go")))

    [slow, others] = await ctx.gather(ctx.agent("slow").ask("go"), rest)
    return [slow, *others]


async def with_errors_caught(ctx: Context[Any]) -> list[Any]:
    async def caught(name: str) -> Any:
        try:
            return await ctx.agent(name).ask("go")
        except BaseException as error:  # noqa: BLE001 - a wait that is not over is none
            return error

    return list(await ctx.gather(caught("slow"), caught("x")))


@pytest.mark.parametrize("ask", [by_gather, by_a_nested_race, nested, with_errors_caught])
async def test_a_tool_does_nothing_with_what_it_has_not_got_yet(
    ask: Juggle, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    async def juggle(ctx: Context[Any]) -> str:
        good = [each for each in await ask(ctx) if isinstance(each, str)]
        done.append(f"without a step: {good}")
        await ctx.step(done.append, f"mailed {good}", name="mail")
        return ", ".join(good)

    async with running(juggler(juggle), slow(), helper("x")) as app:
        session = await app.start("a", "go")
        request = await until(session, "request.opened")
        await seen(session, "subagent.completed")
        await seen(session, "tool.waiting", 2)
        assert done == []
        await session.answer(request.data["request_id"], "approve")
        await seen(session, "turn.completed")

        assert await results_of(session) == ["slow's, x's"]
        both = ["slow's", "x's"]
        assert done == [f"without a step: {both}", f"mailed {both}"]
        assert not await verify(app.store, session.id)
    gc.collect()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


WAITS: dict[str, Callable[[Context[Any]], Awaitable[Any]]] = {
    "ask": asked,
    "agent(…).ask": lambda ctx: ctx.agent("x").ask("go"),
    "sleep": lambda ctx: ctx.sleep(AN_HOUR),
    "callback": lambda ctx: ctx.callback("done", timeout=AN_HOUR),
    "step": lambda ctx: ctx.step(lambda: 1, name="work"),
    "gather": lambda ctx: ctx.gather(asked(ctx)),
    "first": lambda ctx: ctx.first(asked(ctx), ctx.sleep(1)),
}


@pytest.mark.parametrize("way", ["gather", "task", "group"])
@pytest.mark.parametrize("wait", WAITS)
async def test_a_wait_or_step_in_a_task_of_the_tools_own_is_refused(wait: str, way: str) -> None:
    async def juggle(ctx: Context[Any]) -> None:
        async def wait_there() -> None:
            await WAITS[wait](ctx)

        match way:
            case "gather":
                await asyncio.gather(wait_there())
            case "task":
                await asyncio.create_task(wait_there())
            case "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(wait_there())

    options: dict[str, Any] = {"public_url": "https://agents.example"}
    async with running(juggler(juggle), helper("x"), **options) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        [told] = await results_of(session)
        assert f"InvalidInput: ctx.{wait} was called in a task that both started by itself" in told
        assert "write ctx.gather or ctx.first instead" in told
        assert await the(session, "tool.waiting") == []


@pytest.mark.parametrize("what", ["gather", "first"])
async def test_several_waits_in_a_sync_or_transactional_tool_are_refused(what: str) -> None:
    @tool
    def in_thread(ctx: Context[Any]) -> Any:
        return getattr(ctx, what)(ctx.session.id.upper)

    @tool(transactional=True)
    async def in_transaction(ctx: Context[Any]) -> Any:
        return await getattr(ctx, what)(asked(ctx))

    script = [call("in_thread"), call("in_transaction"), say("done")]
    async with running(agent(script, tools=[in_thread, in_transaction])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        [sync, transactional] = await results_of(session)
        assert f"ctx.{what} has to be awaited: write in_thread as `async def`" in sync
        assert f"ctx.{what} cannot be used in a transactional tool" in transactional


async def mixed(ctx: Context[Any]) -> Any:
    return await ctx.gather(asked(ctx), named=asked(ctx))  # type: ignore[call-overload]


async def of_a_task(ctx: Context[Any]) -> Any:
    return await ctx.gather(asyncio.ensure_future(asyncio.sleep(0)))


async def of_a_value(ctx: Context[Any]) -> Any:
    return await ctx.gather(7)  # type: ignore[call-overload]


async def of_none(ctx: Context[Any]) -> Any:
    return await ctx.first()


@pytest.mark.parametrize(
    ("juggle", "told"),
    [
        (mixed, "ctx.gather takes branches with names or without, not both"),
        (of_a_task, "give the coroutine or function, not a task or future"),
        (
            of_a_value,
            "a branch of ctx.gather is a coroutine, or a function that returns one, not int",
        ),
        (of_none, "ctx.first needs at least one branch"),
    ],
)
async def test_what_cannot_be_a_branch_is_refused(juggle: Juggle, told: str) -> None:
    async with running(juggler(juggle)) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        [said] = await results_of(session)
        assert told in said


@pytest.mark.parametrize("kind", ["semaphore", "lock"])
async def test_a_lock_is_let_go_where_a_branch_waits(kind: str) -> None:
    async def juggle(ctx: Context[Any]) -> list[str]:
        gate = asyncio.Semaphore(2) if kind == "semaphore" else asyncio.Lock()

        async def through(name: str) -> str:
            async with gate:
                return (await ctx.ask(f"{name}?")).text

        return list(await ctx.gather(*map(through, "abcd")))

    async with running(juggler(juggle)) as app:
        session = await app.start("a", "go")
        for request in await seen(session, "request.opened", 4):
            await session.answer(request.data["request_id"], text="ok")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["ok","ok","ok","ok"]']


async def test_an_agent_that_is_not_waited_for_any_more_wakes_nobody() -> None:
    runs: list[int] = []

    async def juggle(ctx: Context[Any]) -> str:
        runs.append(ctx.attempt)
        came = await ctx.first(answer=ctx.agent("slow").ask("go"), late=ctx.sleep(AN_HOUR))
        return f"{came.name}, {await asked(ctx)}"

    async with at_standstill(juggler(juggle), slow()) as (app, clock):
        session = await app.start("a", "go")
        approval = await until(session, "request.opened")
        clock.set(START + HOUR)
        question = (await seen(session, "request.opened", 2))[1]
        await seen(session, "session.waiting", 2)
        [given_up] = await the(session, "subagent.failed")
        assert given_up.data["error"]["code"] == "GIVEN_UP"
        with pytest.raises(RequestClosed):
            await session.answer(approval.data["request_id"], "approve")
        assert len(runs) == 2
        await session.answer(question.data["request_id"], text="well")
        await seen(session, "turn.completed")

        assert await results_of(session) == ["late, well"]


class Slow(WrappedStore):
    """A store that takes its time, as one does that is elsewhere."""

    async def commit(self, commits: Any) -> Any:
        await asyncio.sleep(0.02)
        return await super().commit(commits)

    async def find_token(self, tenant: str, token: str, *, living: bool = True) -> str | None:
        await asyncio.sleep(0.02)
        return await super().find_token(tenant, token, living=living)


@pytest.mark.parametrize("deed", ["webhook", "token", "heartbeat"])
async def test_what_a_task_does_through_its_context_comes_before_the_tool_stops(deed: str) -> None:
    async def juggle(ctx: Context[Any]) -> list[Any]:
        async def prepare() -> str:
            match deed:
                case "webhook":
                    await ctx.callback("done", timeout=timedelta(days=1))
                case "token":
                    await ctx.session.set_continuation_token("new")
                case "heartbeat":
                    await ctx.heartbeat(1)
            return await asked(ctx)

        return list(await ctx.gather(ctx.sleep(timedelta(days=30)), prepare()))

    options: dict[str, Any] = {"store": Slow(MemoryStore()), "public_url": "https://agents.example"}
    async with running(juggler(juggle), **options) as app:
        session = await app.start("a", "go")
        await seen(session, "session.waiting")

        assert len(await session.requests()) == 1
        [waiting] = await the(session, "tool.waiting")
        assert len(waiting.data["also"]) == 1


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolError("closed on Sundays"), "TOOL_ERROR: closed on Sundays"),
        (Retry("no tea today"), "RETRY: no tea today"),
        (ValueError("no"), "TOOL_ERROR: ValueError: no"),
    ],
)
async def test_what_a_branch_raises_is_what_the_model_is_told(error: Exception, told: str) -> None:
    async def juggle(ctx: Context[Any]) -> None:
        async def fail() -> None:
            raise error

        await ctx.gather(asked(ctx), fail())

    async with running(juggler(juggle)) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        assert await results_of(session) == [told]


# Time


async def test_a_sleep_takes_as_long_as_it_says_whatever_wakes_its_tool_meanwhile() -> None:
    async def juggle(ctx: Context[Any]) -> str:
        await ctx.gather(ctx.sleep(AN_HOUR), ctx.agent("slow").ask("go"))
        return "rested"

    async with at_standstill(juggler(juggle), slow()) as (app, clock):
        session = await app.start("a", "go")
        request = await until(session, "request.opened")
        clock.set(START + HOUR - 1)
        await session.answer(request.data["request_id"], "approve")
        await seen(session, "tool.waiting", 2)
        assert await the(session, "timer.fired") == []
        clock.set(START + HOUR)

        assert (await session.wait()).output == "done"
        [timer] = await the(session, "timer.set")
        assert timer.data["due_at"] == date_of(START + HOUR)


async def test_sleeps_pass_at_the_same_time() -> None:
    woken: list[int] = []

    async def nap(ctx: Context[Any], place: int, hours: int) -> int:
        await ctx.sleep(hours * AN_HOUR)
        return int(await ctx.step(lambda: note(woken, hours), name=f"{place}"))

    async def juggle(ctx: Context[Any]) -> list[int]:
        return list(await ctx.gather(*(nap(ctx, *each) for each in enumerate((2, 1, 2)))))

    async with at_standstill(juggler(juggle)) as (app, clock):
        session = await app.start("a", "go")
        await seen(session, "timer.set", 3)
        clock.set(START + HOUR)
        await seen(session, "tool.waiting", 2)
        assert woken == [1]
        clock.set(START + 2 * HOUR)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ["[2,1,2]"]
        assert woken == [1, 2, 2]
        assert len(await the(session, "timer.set")) == len(await the(session, "timer.fired")) == 3


async def test_a_time_that_is_over_while_nobody_looks_counts_as_over() -> None:
    async def juggle(ctx: Context[Any]) -> list[Any]:
        async def linger() -> str:
            said = str(await ctx.agent("x").ask("go"))
            clock.set(START + HOUR // 2)
            return said

        return list(await ctx.gather(ctx.sleep(AN_HOUR / 3), linger()))

    async with at_standstill(juggler(juggle), helper("x")) as (app, clock):
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        [fired] = await the(session, "timer.fired")
        assert fired.at.timestamp() * 1000 == START + HOUR // 2
        assert not await verify(app.store, session.id)


@pytest.mark.parametrize("is_in_time", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
async def test_an_agent_may_be_given_so_much_time_and_no_more(
    is_in_time: bool, is_first: bool
) -> None:
    async def juggle(ctx: Context[Any]) -> str:
        answer, timer = ctx.agent("slow").ask("go"), ctx.sleep(AN_HOUR)
        race = [answer, timer] if is_first else [timer, answer]
        came = await ctx.first(*race)
        said = came.value if came.name == "ask" else "nothing"
        return f"{said}, {await asked(ctx)}"

    async with at_standstill(juggler(juggle), slow()) as (app, clock):
        session = await app.start("a", "go")
        request = await until(session, "request.opened")
        if is_in_time:
            await session.answer(request.data["request_id"], "approve")
        else:
            clock.set(START + HOUR)
        question = (await seen(session, "request.opened", 2))[1]
        clock.set(START + 3 * HOUR)
        await session.answer(question.data["request_id"], text="well")
        await seen(session, "turn.completed")

        said = "slow's" if is_in_time else "nothing"
        assert await results_of(session) == [f"{said}, well"]
        assert len(await the(session, "timer.fired")) == (not is_in_time)
        assert not await verify(app.store, session.id)


@pytest.mark.parametrize("is_called", [True, False])
async def test_a_call_from_outside_is_waited_for_as_long_as_was_said(is_called: bool) -> None:
    urls: list[str] = []

    async def juggle(ctx: Context[Any]) -> list[Any]:
        hook = await ctx.callback("done", timeout=timedelta(days=1))
        urls.append(hook.url)

        async def called() -> str:
            came = await hook.wait_for(AN_HOUR)
            return came.text if came else "nobody"

        return list(await ctx.gather(called(), chained(ctx)))

    there = {"public_url": "https://agents.example"}
    agents = juggler(juggle), helper("x"), helper("y")
    async with at_standstill(*agents, **there) as (app, clock):
        session = await app.start("a", "go")
        await seen(session, "subagent.completed", 2)
        await seen(session, "tool.waiting", 3)
        clock.set(START + HOUR - 1)
        if is_called:
            await app.callbacks.receive(urls[0].rpartition("/")[2], b"hello", "text/plain")
        else:
            assert await the(session, "timer.fired") == []
            clock.set(START + HOUR)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == [f'["{"hello" if is_called else "nobody"}","y\'s"]']
        [timer] = await the(session, "timer.set")
        assert timer.data["due_at"] == date_of(START + HOUR)
        assert len(await the(session, "timer.fired")) == (not is_called)


# Steps


async def test_a_step_that_is_being_done_when_the_tool_stops_is_recorded() -> None:
    done: list[str] = []
    is_asked = asyncio.Event()

    async def charge() -> str:
        done.append("charged")
        await is_asked.wait()
        return "charged"

    async def juggle(ctx: Context[Any]) -> list[str]:
        async def charged() -> str:
            return str(await ctx.step(charge, name="charge"))

        async def asked_soon() -> str:
            asyncio.get_running_loop().call_later(0.05, is_asked.set)
            return await asked(ctx)

        return list(await ctx.gather(asked_soon(), charged()))

    async with running(juggler(juggle)) as app:
        session = await app.start("a", "go")
        request = await until(session, "request.opened")
        assert await the(session, "tool.waiting")
        await session.answer(request.data["request_id"], text="yes")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["yes","charged"]']
        assert done == ["charged"]


async def test_a_step_that_is_being_done_when_the_tool_fails_is_recorded() -> None:
    done: list[str] = []

    async def charge() -> str:
        done.append("charged")
        await asyncio.sleep(0.05)
        return "charged"

    async def juggle(ctx: Context[Any]) -> list[str]:
        async def fail_at_first() -> str:
            await asyncio.sleep(0)
            if ctx.attempt == 1:
                raise RuntimeError("not yet")
            return "there"

        return list(await ctx.gather(ctx.step(charge, name="charge"), fail_at_first()))

    async with running(juggler(juggle, idempotent=True, max_attempts=2)) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["charged","there"]']
        assert done == ["charged"]


async def test_a_branch_that_works_goes_on_before_the_tool_stops() -> None:
    done: list[int] = []

    async def juggle(ctx: Context[Any]) -> list[str]:
        async def dawdle() -> str:
            await asyncio.sleep(0.05)
            return str(await ctx.step(lambda: note(done, ctx.attempt) and "worked", name="work"))

        return list(await ctx.gather(asked(ctx), dawdle()))

    async with running(juggler(juggle)) as app:
        session = await app.start("a", "go")
        request = await until(session, "request.opened")
        assert done == [1]
        await session.answer(request.data["request_id"], text="yes")

        assert (await session.wait()).output == "done"
        assert done == [1]


@pytest.mark.parametrize("wait", ["ask", "agent", "sleep", "step"])
async def test_what_is_left_of_a_tool_that_has_ended_is_stopped_without_a_word(
    wait: str, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[asyncio.Task[Any]] = []
    done: list[int] = []

    async def juggle(ctx: Context[Any]) -> str:
        async def dawdle() -> None:
            await asyncio.sleep(0.05)
            match wait:
                case "ask":
                    await ctx.ask("Anybody?")
                case "agent":
                    await ctx.agent("x").ask("go")
                case "sleep":
                    await ctx.sleep(AN_HOUR)
                case "step":
                    await ctx.step(done.append, 1, name="work")

        left.append(asyncio.create_task(dawdle()))
        return "over"

    async with running(juggler(juggle), helper("x")) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "done"
        await asyncio.wait(left)

        assert left[0].cancelled()
        assert not done
        assert not caplog.records
        assert await results_of(session) == ["over"]


@pytest.mark.parametrize("together", [False, True])
async def test_a_step_may_wait_itself(together: bool) -> None:
    async def juggle(ctx: Context[Any]) -> list[str]:
        async def in_a_step(name: str) -> str:
            async def ask() -> str:
                [answer] = await ctx.gather(ctx.ask(f"{name}?"))
                return answer.text

            return str(await ctx.step(ask, name=name))

        if together:
            return list(await ctx.gather(*map(in_a_step, "xy")))
        return [await in_a_step(name) for name in "xy"]

    async with running(juggler(juggle, timeout=5)) as app:
        session = await app.start("a", "go")
        for place, name in enumerate("xy"):
            requests = await seen(session, "request.opened", 2 if together else place + 1)
            [request] = [each for each in requests if each.data["prompt"] == f"{name}?"]
            await session.answer(request.data["request_id"], text=name)

        assert (await session.wait()).output == "done"
        assert await results_of(session) == ['["x","y"]']


# Crashes


async def test_a_crash_at_any_commit_begins_nothing_twice() -> None:
    ledger = Ledger()

    async def juggle(ctx: Context[Any]) -> list[str]:
        async def nap() -> str:
            await ctx.sleep(timedelta(milliseconds=5))
            return str(await ctx.step(lambda: "noted", name="note"))

        return list(await ctx.gather(nap(), asked(ctx), chained(ctx)))

    async def play(app: Outlast) -> Any:
        session = await app.start("a", "go", dispatch_id="go")
        [request] = await seen(session, "request.opened")
        await session.answer(request.data["request_id"], text="yes", dispatch_id="yes")
        result = await session.wait()
        kinds = ("request.opened", "subagent.called", "timer.set", "timer.fired")
        begun = [len(await the(session, kind)) for kind in kinds]
        wrong = await verify(app.store, session.id)
        return result.output, await results_of(session), begun, wrong

    agents = [juggler(juggle), helper("x"), helper("y")]
    report = await crash_everywhere(play, agents=agents, ledger=ledger)

    assert len(report.runs) > 10
    told = ['["noted","yes","y\'s"]']
    assert all(run.output == ("done", told, [1, 2, 1, 1], []) for run in report.runs)
