"""Log lines: a fixed phrase, and the ids of where it was written."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST, agent, running, until

from outlast import Agent, ModelOptions, Outlast, ToolError, tool
from outlast.errors import StoreUnavailable
from outlast.integration.telemetry import Telemetry
from outlast.log import reader as reading
from outlast.log_context import KnownIds, enter, known
from outlast.stores.sqlite import MemoryStore
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say
from outlast.testing.wrapped_store import WrappedStore

LANE = ("session", "lane", "worker", "fence")
CALL = (*LANE, "turn", "step", "call", "attempt")


def lines(caplog: pytest.LogCaptureFixture, phrase: str) -> list[Any]:
    return [record for record in caplog.records if record.getMessage() == phrase]


async def until_told(caplog: pytest.LogCaptureFixture, words: str) -> None:
    async with asyncio.timeout(60):
        while not any(words in line.getMessage() for line in caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def ids(record: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(record, name, None) for name in names)


@pytest.fixture(autouse=True)
def everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "outlast")


async def test_the_lines_of_a_turn_that_was_taken_over_name_who_and_where(
    caplog: pytest.LogCaptureFixture,
) -> None:
    entered, opens, store = asyncio.Event(), asyncio.Event(), MemoryStore()
    user = logging.getLogger("user")
    user.addFilter(KnownIds())

    @tool(readonly=True)
    async def gate() -> str:
        user.warning("at the gate")
        if not entered.is_set():
            entered.set()
            await opens.wait()
        raise RuntimeError("no way through")

    mover = agent([call("gate"), say("done")], tools=[gate])
    first = running(mover, store=store, settings=replace(FAST, name="w1"))
    second = running(mover, store=store, settings=replace(FAST, name="w2"))
    async with first as app, second:
        session = await app.start("a", "go")
        await entered.wait()
        owner = (await session.info()).lanes[0].worker
        other = {"w1": "w2", "w2": "w1"}[owner]
        store.declare_dead(owner)
        assert (await session.wait()).output == "done"
        opens.set()
        [taken] = [e async for e in session.events(internals=True) if e.type == "lane.taken_over"]
        await app.close()

    fence = taken.data["fence"]
    [died] = lines(caplog, "a worker died; its lanes are free")
    assert ids(died, ("worker",)) == (owner,)
    gates = lines(caplog, "at the gate")
    assert [ids(line, CALL) for line in gates] == [
        (session.id, "main", owner, 1, "t1", 1, "t1.s1.c1", 1),
        (session.id, "main", other, fence, "t1", 1, "t1.s1.c1", 2),
    ]
    assert fence > 1
    failed = [ids(line, (*CALL, "code")) for line in lines(caplog, "a tool failed")]
    assert (session.id, "main", other, fence, "t1", 1, "t1.s1.c1", 2, "TOOL_ERROR") in failed
    for line in lines(caplog, "a lane was taken over by another worker"):
        assert ids(line, LANE) == (session.id, "main", owner, 1)
    about_lanes = [r for r in caplog.records if getattr(r, "session", None)]
    assert {vars(r)["worker"] for r in about_lanes} == {owner, other}
    assert all(hasattr(r, "fence") for r in about_lanes)


async def test_a_model_call_that_failed_is_told_with_its_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = ScriptedReply(fails=(ScriptedError("recoverable", "the words of a secret"),))
    async with running(agent([failing]), settings=replace(FAST, name="w1")) as app:
        session = await app.start("a", "go")
        await session.wait()

    [line] = lines(caplog, "a model call failed")
    assert ids(line, CALL) == (session.id, "main", "w1", 1, "t1", 1, "t1.s1", 1)
    assert line.code == "SCRIPTED"


@pytest.mark.parametrize("telemetry", [Telemetry(), None])
async def test_a_turn_that_failed_is_a_warning_that_says_which_and_why(
    caplog: pytest.LogCaptureFixture, telemetry: Telemetry | None
) -> None:
    failing = ScriptedReply(fails=(ScriptedError("recoverable", "not like that"),))
    named = replace(FAST, name="w1")
    async with running(agent([failing]), settings=named, telemetry=telemetry) as app:
        session = await app.start("a", "go")
        await session.wait()

    whose = "(agent a, model scripted)"
    [line] = lines(caplog, f"turn t1 of {session.id} failed {whose}: SCRIPTED: not like that")
    assert line.levelname == "WARNING"
    assert ids(line, (*LANE, "turn", "code")) == (session.id, "main", "w1", 1, "t1", "SCRIPTED")
    assert ids(line, ("agent", "model")) == ("a", "scripted")


FORGED = "not like that\n2026-01-01 ERROR forged\u202e"
SEEN = "not like that\\n2026-01-01 ERROR forged\\u202e"


async def test_no_error_of_a_provider_makes_a_line_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails = tuple(ScriptedError(kind, FORGED) for kind in ("blocked", "recoverable"))
    failing = ScriptedReply(fails=fails)
    async with running(agent([failing], model_options=ModelOptions(max_attempts=1))) as app:
        session = await app.start("a", "go")
        waiting = asyncio.create_task(session.wait())
        for words in ("scripted cannot be had", f"session {session.id} (agent a) waits for"):
            await until_told(caplog, words)
        await app.providers.try_now()
        await waiting
        await until_told(caplog, f"turn t1 of {session.id} failed")

    phrases = [line.getMessage() for line in caplog.records]
    told = [phrase for phrase in phrases if "forged" in phrase]
    assert len(told) == 3
    assert all(SEEN in phrase for phrase in told), told


async def test_a_store_that_is_away_is_told_with_the_lane_and_its_owner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Away(WrappedStore):
        is_away = True

        async def commit(self, commits: Any) -> Any:
            if self.is_away:
                self.is_away = False
                raise StoreUnavailable("away")
            return await super().commit(commits)

    async with running(
        agent([say("hi")]), store=Away(MemoryStore()), settings=replace(FAST, name="w1")
    ) as app:
        session = await app.start("a", "go")
        await until(session, "turn.completed")

    [line] = lines(caplog, "the store is away")
    assert ids(line, LANE) == (session.id, "main", "w1", 1)


async def test_ids_are_those_of_the_task_and_of_what_it_began() -> None:
    async def inner() -> dict[str, object]:
        enter(call="c1")
        return dict(known())

    async def outer() -> tuple[dict[str, object], dict[str, object]]:
        enter(session="s1", fence=1)
        began = await asyncio.create_task(inner())
        return began, dict(known())

    began, own = await asyncio.create_task(outer())

    assert began == {"session": "s1", "fence": 1, "call": "c1"}
    assert own == {"session": "s1", "fence": 1}
    assert known() == {}


def test_what_a_line_says_itself_is_not_overruled() -> None:
    record = logging.makeLogRecord({"worker": "w9"})
    asyncio.run(filtered(record))
    assert (record.worker, record.session) == ("w9", "s1")  # type: ignore[attr-defined]


async def filtered(record: logging.LogRecord) -> None:
    enter(worker="w1", session="s1")
    assert KnownIds().filter(record)


@pytest.mark.parametrize("is_async", [True, False])
async def test_what_a_tool_raised_is_logged_with_where_it_was_raised(
    caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def divide() -> float:
        return 1 / 0

    async def divide_later() -> float:
        return divide()

    tools = [tool(name="divide")(divide_later if is_async else divide)]
    async with running(agent([call("divide"), say("sorry")], tools=tools)) as app:
        await (await app.start("a", "go")).wait()

    [line] = lines(caplog, "a tool raised an error")
    assert (line.levelname, line.tool) == ("WARNING", "divide")
    assert "return 1 / 0" in caplog.text


async def test_a_tool_error_says_all_and_is_logged_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def pay() -> None:
        raise ToolError("the card was refused")

    async with running(agent([call("pay"), say("sorry")], tools=[pay])) as app:
        await (await app.start("a", "go")).wait()

    assert not lines(caplog, "a tool raised an error")


NOBODY = "no worker serves this session; it is waited for until one does"


@pytest.mark.parametrize("way", ["wait", "result"])
@pytest.mark.parametrize("workers", [0, 1], ids=["no worker", "one of another agent"])
async def test_who_waits_for_a_session_that_nobody_serves_is_told_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, workers: int, way: str
) -> None:
    monkeypatch.setattr(reading, "POLL", 0.01)
    agents = [agent([say("hi")]), Agent("other", ScriptedModel([]))]
    only = replace(FAST, agents=("other",)) if workers else None
    async with Outlast(agents, store="memory://", worker=only) as app:
        session = await app.start("a", "hi")
        assert session.receipt is not None
        waits = session.wait() if way == "wait" else session.receipt.result()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waits, 0.3)

        [line] = lines(caplog, NOBODY)
        assert (line.session, line.agent, line.workers) == (session.id, "a", workers)


async def test_who_waits_for_a_session_at_work_is_told_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POLL", 0.01)
    go_on = asyncio.Event()

    @tool
    async def work() -> None:
        asyncio.get_running_loop().call_later(0.2, go_on.set)
        await go_on.wait()

    async with running(agent([call("work"), say("done")], tools=[work])) as app:
        assert (await (await app.start("a", "go")).wait()).output == "done"

    assert not lines(caplog, NOBODY)
