"""The users' crash kit: finds tools that do things twice, and lets sound ones pass."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from outlast import Agent, Context, Outlast, Session, Tool, tool
from outlast.errors import InvalidDefinition, UnknownCallback
from outlast.log.verify import verify
from outlast.planning import Planning
from outlast.stores.sqlite import MemoryStore
from outlast.testing import Ledger, ScriptedModel, call, calls, crash_everywhere, say
from outlast.testing.report import CrashReport

EXAMPLE = Path(__file__).parents[2] / "examples" / "08_crash_test.py"


def agent(*tools: Tool) -> Agent[Any, Any]:
    """An agent that calls each of its tools once, all at a time, and says so."""
    model = ScriptedModel([calls(*((t.name, {}) for t in tools)), say("All done.")])
    return Agent("doer", model, tools=tools)


async def do(app: Outlast) -> str | None:
    session: Session[Any] = await app.start("doer", "Do it")
    return (await session.wait()).output


async def try_out(ledger: Ledger, *tools: Tool) -> CrashReport:
    return await crash_everywhere(do, agents=[agent(*tools)], ledger=ledger, store=MemoryStore)


async def test_a_tool_that_only_claims_to_be_idempotent_is_found_with_its_crash_point() -> None:
    ledger = Ledger()

    @tool(idempotent=True)
    async def charge() -> None:
        ledger.record("charged", order=17)

    report = await try_out(ledger, charge)

    [found] = report.repeated
    assert (found.what, found.tool, found.times, found.expected) == (
        "charged(order=17)",
        "charge",
        2,
        1,
    )
    assert (found.point.when, found.point.writing[0]) == ("before", "tool.completed")
    with pytest.raises(AssertionError, match=r"charged\(order=17\) by the tool charge happened 2"):
        report.assert_no_effect_repeated()


async def test_a_sync_tool_that_only_claims_to_be_idempotent_is_found_too() -> None:
    ledger = Ledger()

    @tool(idempotent=True)
    def charge() -> None:
        ledger.record("charged")

    report = await try_out(ledger, charge)

    assert {found.tool for found in report.repeated} == {"charge"}


async def test_tools_that_honour_the_key_reconcile_or_say_nothing_pass() -> None:
    ledger = Ledger()

    @tool(idempotent=True)
    async def charge(ctx: Context[Any]) -> None:
        ledger.record("charged", idempotency_key=ctx.idempotency_key)

    def find(ctx: Context[Any], args: dict[str, Any]) -> str:
        return "found"

    @tool(on_interrupt=find)
    async def ship() -> None:
        ledger.record("shipped")

    @tool
    async def mail() -> None:
        ledger.record("mailed")

    report = await try_out(ledger, charge, ship, mail)

    assert len(report.runs) > 6
    assert sorted(effect.what for effect in report.undisturbed.effects) == [
        "charged()",
        "mailed()",
        "shipped()",
    ]
    report.assert_no_effect_repeated()
    report.assert_nothing_lost()
    report.assert_same_output()


async def test_there_is_a_crash_before_and_after_every_commit_on_sqlite_too() -> None:
    ledger = Ledger()

    @tool(transactional=True)
    async def reserve(ctx: Context[Any]) -> None:
        await ctx.tx.execute("CREATE TABLE IF NOT EXISTS seats (seat)")

    report = await crash_everywhere(do, agents=[agent(reserve)], ledger=ledger)

    points = [(run.point.commit, run.point.when) for run in report.runs if run.point]
    last = points[-1][0]
    assert points == [(n, when) for n in range(1, last + 1) for when in ("before", "after")]
    assert any("tool.completed" in run.point.writing for run in report.runs if run.point)
    report.assert_same_output()


async def test_an_answer_that_depends_on_a_crash_is_reported_as_another_output() -> None:
    @tool
    async def mail() -> str:
        return "mailed"

    async def history(app: Outlast) -> str:
        session: Session[Any] = await app.start("doer", "Do it")
        await session.wait()
        return str(await session.history())

    report = await crash_everywhere(history, agents=[agent(mail)], store=MemoryStore)

    with pytest.raises(
        AssertionError, match=r"other outputs: 2\n.*outcome of this call is unknown"
    ):
        report.assert_same_output()


@pytest.mark.parametrize(
    ("hangs", "error"),
    [
        (False, "RuntimeError: it was tried again"),
        (True, "TimeoutError: the scenario did not end within 1 s"),
    ],
    ids=["fails", "hangs"],
)
async def test_a_scenario_that_ends_badly_after_a_crash_is_reported(
    hangs: bool, error: str
) -> None:
    attempts: list[int] = []

    @tool(idempotent=True)
    async def check(ctx: Context[Any]) -> None:
        attempts.append(ctx.attempt)

    async def picky(app: Outlast) -> None:
        attempts.clear()
        await do(app)
        if attempts != [1]:
            await asyncio.Event().wait() if hangs else None
            raise RuntimeError("it was tried again")

    report = await crash_everywhere(picky, agents=[agent(check)], store=MemoryStore, timeout=1)

    assert {run.error for run in report.unfinished} == {error}
    with pytest.raises(AssertionError, match=f"the scenario failed: 2\n  after a crash .*{error}"):
        report.assert_nothing_lost()


async def test_a_scenario_that_fails_undisturbed_raises_its_own_error() -> None:
    async def broken(app: Outlast) -> None:
        raise RuntimeError("not the agent's fault")

    with pytest.raises(RuntimeError, match="not the agent's fault"):
        await crash_everywhere(broken, agents=[agent()], store=MemoryStore)


async def test_a_worker_that_cannot_start_raises_its_own_error() -> None:
    def connect() -> str:
        raise ConnectionError("there is no database")

    @asynccontextmanager
    async def no_database() -> AsyncIterator[str]:
        yield connect()

    with pytest.raises(ConnectionError, match="there is no database"):
        await crash_everywhere(do, agents=[agent()], deps=no_database, store=MemoryStore)


async def test_a_message_that_nobody_dealt_with_is_reported_as_lost() -> None:
    model = ScriptedModel([call("wait"), say("Done."), say("Done again.")])

    @tool(on_interrupt="ask")
    async def wait() -> None:
        """A crash in here leaves a question, and the follow-up in the queue."""

    async def leave(app: Outlast) -> None:
        session: Session[Any] = await app.start("waiter", "Do it")
        await session.send("And again")
        await session.wait()

    waiter: Agent[Any, Any] = Agent("waiter", model, tools=[wait])
    report = await crash_everywhere(leave, agents=[waiter], store=MemoryStore)

    report.assert_no_effect_repeated()
    with pytest.raises(AssertionError, match=r"deliveries lost: 2\n  2 by a crash after commit 2"):
        report.assert_nothing_lost()


def test_the_example_catches_the_bad_tool_and_passes_the_good_one() -> None:
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True)

    careless, careful = ran.stdout.split("the careful tool:")
    assert "charged(order=17) by the tool charge_carelessly happened 2 times" in careless
    assert "effects repeated: 0" in careful


async def test_a_place_in_a_tool_lane_survives_a_crash_at_every_commit() -> None:
    ledger, inside, most = Ledger(), 0, 0

    @tool(mutex="desk", idempotent=True)
    async def edit(ctx: Context) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            await asyncio.sleep(0.01)
        finally:
            inside -= 1
        ledger.record("edited", session=ctx.session.id, idempotency_key=ctx.idempotency_key)

    async def two_at_once(app: Outlast) -> tuple[Any, ...]:
        sessions = [await app.start("doer", "Do it", dispatch_id=str(n)) for n in range(2)]
        ended = [(await session.wait()).output for session in sessions]
        return (*ended, len(await app.store.limit.permits()))

    script = lambda asked: calls(("edit", {})) if len(asked.view.messages) == 1 else say("Done.")  # noqa: E731
    doer = Agent("doer", ScriptedModel(script), tools=[edit])
    report = await crash_everywhere(two_at_once, agents=[doer], ledger=ledger)

    assert report.undisturbed.output == ("Done.", "Done.", 0)
    assert len(report.runs) > 10
    assert {run.output for run in report.runs} == {("Done.", "Done.", 0)}
    assert most == 1


async def test_a_tool_that_waits_for_a_callback_survives_a_crash_at_every_commit() -> None:
    ledger = Ledger()
    told: asyncio.Queue[str] = asyncio.Queue()

    @tool(on_interrupt="rerun")
    async def charge(ctx: Context[Any]) -> str:
        hook = await ctx.callback("done", timeout=timedelta(hours=1))
        await ctx.step(told.put, hook.url, name="order")
        paid = await hook.wait()
        ledger.record("paid", idempotency_key=ctx.idempotency_key)
        return paid.text

    async def pay(app: Outlast) -> str | None:
        session: Session[Any] = await app.start("doer", "Do it")
        url = await told.get()
        while (await session.info()).status != "sleeping":  # noqa: ASYNC110 - for the same commits
            await asyncio.sleep(0.001)
        await app.callbacks.receive(url.rpartition("/")[2], b"17")
        output = (await session.wait()).output
        while not told.empty():  # whoever was told twice may call twice
            with suppress(UnknownCallback):
                await app.callbacks.receive(told.get_nowait().rpartition("/")[2], b"17")
        assert (await session.wait()).output == output
        assert not await verify(app.store, session.id)
        return output

    report = await crash_everywhere(
        pay, agents=[agent(charge)], ledger=ledger, public_url="https://agents.example"
    )

    assert any("callback.opened" in run.point.writing for run in report.runs if run.point)
    assert any("callback.closed" in run.point.writing for run in report.runs if run.point)
    report.assert_no_effect_repeated()
    report.assert_nothing_lost()
    report.assert_same_output()


async def test_a_plan_goes_on_from_its_milestones_after_a_crash_at_every_commit() -> None:
    ledger = Ledger()

    @tool(idempotent=True)
    async def pour(ctx: Context[Any], cups: int) -> str:
        ledger.record("poured", cups=cups, idempotency_key=ctx.idempotency_key)
        return "poured"

    async def serve(app: Outlast) -> tuple[Any, ...]:
        session: Session[Any] = await app.start("host", "Tea!", dispatch_id="tea")
        output = (await session.wait()).output
        reached = [milestone.title for milestone in await session.milestones()]
        return (output, reached, not await verify(app.store, session.id))

    script = [
        call("planning_setup_plan", objective="tea", initial_steps=["boil", "pour"]),
        call("planning_update_step", step_id=1, status="done"),
        call("pour", cups=2),
        call("planning_update_step", step_id=2, status="done"),
        say("Served."),
    ]
    host: Agent[Any, Any] = Agent(
        "host", ScriptedModel(script), tools=[pour], planning=Planning(), resume="milestone"
    )
    report = await crash_everywhere(serve, agents=[host], ledger=ledger, store=MemoryStore)

    report.assert_no_effect_repeated()
    report.assert_nothing_lost()
    assert report.undisturbed.output == ("Served.", ["boil", "pour"], True)
    report.assert_same_output()


@pytest.mark.parametrize("store", [MemoryStore, None], ids=["memory", "sqlite"])
async def test_three_levels_with_a_relayed_approval_survive_a_crash_at_every_commit(
    store: type[MemoryStore] | None,
) -> None:
    ledger = Ledger()

    @tool(approval="always", idempotent=True)
    async def pay(ctx: Context[Any], cents: int) -> str:
        ledger.record("paid", cents=cents, idempotency_key=ctx.idempotency_key)
        return f"paid {cents}"

    clerk: Agent[Any, Any] = Agent(
        "clerk", ScriptedModel([call("pay", cents=500), say("paid")]), tools=[pay]
    )
    manager: Agent[Any, Any] = Agent(
        "manager", ScriptedModel([call("clerk", message="pay"), say("managed")]), subagents=[clerk]
    )
    owner: Agent[Any, Any] = Agent(
        "owner", ScriptedModel([call("manager", message="do"), say("done")]), subagents=[manager]
    )

    async def approve_at_the_top(app: Outlast) -> str | None:
        top: Session[Any] = await app.start("owner", "Go")
        while not (result := await top.wait()).requests:
            assert result.status == "waiting", result
        await top.answer(
            result.requests[0].request_id, "approve", args={"cents": 5}, principal="ada"
        )
        async for event in top.events(children=True):
            if event.type == "turn.completed" and event.session_id == top.id:
                break
        sessions = await app.sessions()
        assert len(sessions) == 3
        for info in sessions:
            assert await (await app.session(info.session_id)).requests() == ()
            assert not await verify(app.store, info.session_id)
        return (await top.wait()).output

    report = await crash_everywhere(approve_at_the_top, agents=[owner], ledger=ledger, store=store)

    writings = [run.point.writing for run in report.runs if run.point]
    for kind in ("subagent.called", "subagent.completed", "request.opened", "request.resolved"):
        assert any(kind in writing for writing in writings)
    assert [effect.what for effect in report.undisturbed.effects] == ["paid(cents=5)"]
    report.assert_no_effect_repeated()
    report.assert_nothing_lost()
    report.assert_same_output()


async def test_an_agent_that_others_ask_may_be_given_as_well() -> None:
    writer: Agent[Any, Any] = Agent("writer", ScriptedModel([say("written")]))
    boss: Agent[Any, Any] = Agent(
        "boss", ScriptedModel([call("writer", message="write"), say("done")]), subagents=[writer]
    )

    async def play(app: Outlast) -> str | None:
        return (await (await app.start("boss", "Go")).wait()).output

    report = await crash_everywhere(play, agents=[boss, writer], ledger=Ledger())

    report.assert_same_output()


async def do_nothing(app: Outlast) -> None:
    """Start no session."""


async def test_a_scenario_in_which_nothing_could_crash_proves_nothing() -> None:
    report = await crash_everywhere(do_nothing, agents=[agent()], store=MemoryStore)

    for proves in (report.assert_no_effect_repeated, report.assert_nothing_lost):
        with pytest.raises(AssertionError, match="none was crashed"):
            proves()


@pytest.mark.parametrize(
    ("misuse", "told"),
    [
        ({"store": "memory://"}, "store is a function"),
        ({"store": MemoryStore()}, "store is a function"),
        ({"agents": agent()}, "agents have to be given in a list"),
        ({"worker": None}, "worker is the runs' own"),
        ({"scenario": lambda app: 5}, "the scenario is an `async def` function"),
    ],
)
async def test_what_the_crash_kit_cannot_use_is_refused(misuse: dict[str, Any], told: str) -> None:
    given = {"scenario": do, "agents": [agent()], "store": MemoryStore, **misuse}

    with pytest.raises(InvalidDefinition, match=told):
        await crash_everywhere(given.pop("scenario"), **given)
