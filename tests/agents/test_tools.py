import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from known import known
from msgspec.structs import replace
from pydantic import BaseModel
from scene import FAST, agent, at_standstill, results_of, running, seen, the, types_of, until

from outlast import (
    Context,
    Limits,
    NotDone,
    Option,
    OutlastError,
    Retry,
    Session,
    ToolError,
    ToolResult,
    tool,
)
from outlast.agents.tool import Tool
from outlast.core.instant import milliseconds_at
from outlast.errors import StepError
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import call, calls, say

# What a tool returns, and how it fails


async def test_a_tools_result_may_be_any_plain_value() -> None:
    class Receipt(BaseModel):
        cents: int

    @dataclass
    class Place:
        street: str

    @tool(readonly=True)
    async def look() -> dict[str, object]:
        return {"receipt": Receipt(cents=5), "place": Place("Elm"), "at": timedelta(seconds=1)}

    async with running(agent([call("look"), say("done")], tools=[look])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [done] = await the(session, "tool.completed")
        assert done.data["value"] == {
            "receipt": {"cents": 5},
            "place": {"street": "Elm"},
            "at": "PT1S",
        }


async def test_a_tool_result_shows_the_model_one_thing_and_keeps_another() -> None:
    @tool(readonly=True)
    async def rows() -> ToolResult[list[int]]:
        return ToolResult("3 rows", [1, 2, 3])

    async with running(agent([call("rows"), say("done")], tools=[rows])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [done] = await the(session, "tool.completed")
        assert done.data["value"] == [1, 2, 3]
        assert await results_of(session) == ["3 rows"]


async def test_a_tool_error_is_a_failure_that_the_model_sees() -> None:
    @tool
    async def pay() -> None:
        raise ToolError("the card was refused")

    async with running(agent([call("pay"), say("sorry")], tools=[pay])) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.output == "sorry"
        assert await results_of(session) == ["TOOL_ERROR: the card was refused"]


async def test_any_exception_of_a_tool_is_a_definite_failure() -> None:
    ran: list[int] = []

    @tool(readonly=True)
    async def divide() -> float:
        ran.append(1)
        return 1 / 0

    async with running(agent([call("divide"), say("sorry")], tools=[divide])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["TOOL_ERROR: ZeroDivisionError: division by zero"]
        assert ran == [1]


@pytest.mark.parametrize(
    "error", [SystemExit("bye"), KeyboardInterrupt(), StopIteration(), StopAsyncIteration()]
)
async def test_a_sync_tool_that_would_end_its_process_or_its_caller_has_failed(
    error: BaseException,
) -> None:
    @tool
    def leave() -> None:
        raise error

    async with running(agent([call("leave"), say("sorry")], tools=[leave])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [told] = await results_of(session)
        assert told.startswith("TOOL_ERROR")
        assert type(error).__name__ in told


async def test_an_async_tool_that_exits_has_failed_and_its_worker_goes_on() -> None:
    @tool
    async def leave() -> None:
        sys.exit("bye")

    async with running(agent([call("leave"), say("sorry")], tools=[leave])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["TOOL_ERROR: SystemExit: bye"]


class Panic(BaseException):
    """As libraries that are written in Rust raise it."""


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")


@pytest.mark.parametrize(
    ("error", "told"), [(Panic("help"), "Panic: help"), (Wordless(), "Wordless")], ids=repr
)
async def test_an_error_of_any_kind_is_the_tools_failure_and_its_worker_goes_on(
    error: BaseException, told: str
) -> None:
    @tool
    async def pay() -> None:
        raise error

    async with running(agent([call("pay"), say("sorry")], tools=[pay])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "sorry"
        assert await results_of(session) == [f"TOOL_ERROR: {told}"]


async def test_an_error_of_any_kind_among_things_done_at_once_is_the_tools_failure() -> None:
    async def panic() -> None:
        raise Panic("help")

    @tool
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(panic())
            group.create_task(asyncio.Event().wait())

    async with running(agent([call("both"), say("sorry")], tools=[both])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["TOOL_ERROR: Panic: help"]


async def test_a_failure_among_things_that_a_tool_does_at_once_is_its_failure() -> None:
    async def divide() -> float:
        return 1 / 0

    @tool
    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(divide())
            group.create_task(asyncio.Event().wait())

    async with running(agent([call("both"), say("sorry")], tools=[both])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [told] = await results_of(session)
        assert told == "TOOL_ERROR: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolError("no file caf\udce9"), "TOOL_ERROR: no file caf?"),
        (Retry("no file caf\udce9"), "RETRY: no file caf?"),
        (ToolError(ValueError("no such file")), "TOOL_ERROR: no such file"),  # type: ignore[arg-type]
        (ToolError("x" * 20_000), f"TOOL_ERROR: {'x' * 10_000}…"),
    ],
)
async def test_whatever_a_tools_error_says_can_be_stored(error: ToolError, told: str) -> None:
    @tool
    async def read() -> None:
        raise error

    async with running(agent([call("read"), say("sorry")], tools=[read])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == [told]


async def test_what_a_tool_shows_the_model_can_be_stored() -> None:
    @tool(readonly=True)
    async def read() -> ToolResult[int]:
        return ToolResult("caf\udce9", 1)

    async with running(agent([call("read"), say("done")], tools=[read])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["caf?"]


class Busy(Exception):
    """A failure of somebody's library, whose code is one of ours by chance."""

    code = "RETRY"


@pytest.mark.parametrize("error", [ToolError("busy"), ValueError("busy"), Busy("busy")])
async def test_a_tool_is_tried_again_by_itself_after_growing_pauses(error: Exception) -> None:
    attempts: list[int] = []

    @tool(readonly=True, max_attempts=4)
    async def flaky(ctx: Context) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 4:
            raise error
        return "there"

    async with at_standstill(agent([call("flaky"), say("done")], tools=[flaky])) as (app, clock):
        session = await app.start("a", "go")
        pauses = [await pass_pause(session, clock, failed) for failed in (1, 2, 3)]
        await session.wait()

        assert attempts == [1, 2, 3, 4]
        assert await results_of(session) == ["there"]
        assert pauses == sorted(pauses)
        assert pauses[0] > 100


async def pass_pause(session: Session[Any], clock: ManualClock, failed: int) -> int:
    """Let the pause go by that follows on a tool's n-th failure; return how long it was, in ms."""
    *_, last = await seen(session, "tool.failed", failed)
    again_at = milliseconds_at(last.data["again_at"])
    pause = again_at - clock.now()
    clock.set(again_at)
    return pause


async def test_a_tool_that_goes_on_failing_is_given_up_and_the_model_is_told() -> None:
    @tool(readonly=True, max_attempts=2)
    async def broken() -> str:
        raise ToolError("busy")

    async with at_standstill(agent([call("broken"), say("sorry")], tools=[broken])) as (app, clock):
        session = await app.start("a", "go")
        await pass_pause(session, clock, 1)
        await session.wait()

        assert len(await the(session, "tool.failed")) == 2
        assert await results_of(session) == ["TOOL_ERROR: busy"]


async def test_arguments_that_do_not_fit_are_corrected_by_the_model() -> None:
    paid: list[int] = []

    @tool
    async def pay(cents: int) -> str:
        paid.append(cents)
        return "paid"

    script = [call("pay", cents="many"), call("pay", cents=5), say("done")]
    async with running(agent(script, tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert paid == [5]
        first, second = await results_of(session)
        assert "cents: Input should be a valid integer" in first
        assert second == "paid"


async def test_a_tool_may_ask_for_other_arguments() -> None:
    @tool
    async def pay(cents: int) -> str:
        if cents > 100:
            raise Retry("at most 100")
        return "paid"

    script = [call("pay", cents=500), call("pay", cents=100), say("done")]
    async with running(agent(script, tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["RETRY: at most 100", "paid"]


async def test_a_model_that_never_corrects_itself_fails_its_turn() -> None:
    script = [call("nothing_of_the_sort")] * 10
    async with running(agent(script)) as app:
        result = await (await app.start("a", "go")).wait()

    assert (result.status, known(result.error).code) == ("failed", "TOO_MANY_CORRECTIONS")


async def test_a_turn_that_never_ends_is_stopped_after_max_steps() -> None:
    async with running(agent([call("noop")] * 10, tools=[noop], limits=Limits(max_steps=3))) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert known(result.error).code == "MAX_STEPS"
        assert len(await the(session, "tool.completed")) == 3


@tool(readonly=True)
async def noop() -> str:
    return "nothing"


# Interruptions while the process lives


async def test_a_timeout_is_an_interruption_and_not_a_failure() -> None:
    @tool(timeout=0.01)
    async def pay() -> None:
        await asyncio.Event().wait()

    async with running(agent([call("pay"), say("hm")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "timeout"
        [told] = await results_of(session)
        assert "outcome of this call is unknown" in told


async def test_a_timeout_binds_a_tool_that_ignores_its_cancellation() -> None:
    may_end, ended = asyncio.Event(), asyncio.Event()

    @tool(timeout=0.01)
    async def stubborn(ctx: Context) -> str:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue
        ended.set()
        return await ctx.step(lambda: "too late", name="late")

    script = [call("stubborn"), say("hm"), say("later")]
    async with running(agent(script, tools=[stubborn])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "hm"
        [told] = await results_of(session)
        assert "outcome of this call is unknown" in told

        may_end.set()
        await ended.wait()
        await (await session.send("and now?")).result()
        kinds = await types_of(session)
        assert kinds.count("tool.interrupted") == 1
        assert not {"tool.completed", "tool.step_recorded"} & set(kinds)


async def test_a_timeout_error_of_the_tools_own_is_a_failure() -> None:
    @tool
    async def fetch() -> None:
        raise TimeoutError("the host is slow")

    async with running(agent([call("fetch"), say("hm")], tools=[fetch])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["TOOL_ERROR: TimeoutError: the host is slow"]


async def test_a_timed_out_tool_that_can_be_rerun_is_rerun_with_the_same_key() -> None:
    keys: list[str] = []

    @tool(idempotent=True, timeout=0.01)
    async def pay(ctx: Context) -> str:
        keys.append(ctx.idempotency_key)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "paid"

    async with running(agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["paid"]
        assert keys == [f"{session.id}:t1.s1.c1"] * 2


async def test_a_tool_that_times_out_for_ever_ends_its_turn_with_no_progress() -> None:
    @tool(readonly=True, timeout=0.001)
    async def hang() -> None:
        await asyncio.Event().wait()

    async with running(agent([call("hang")], tools=[hang], limits=Limits(max_crashes=3))) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert known(result.error).code == "NO_PROGRESS"
        assert len(await the(session, "tool.started")) == 3


async def test_an_interrupted_tool_may_fail_its_turn() -> None:
    @tool(on_interrupt="fail", timeout=0.01)
    async def launch() -> None:
        await asyncio.Event().wait()

    async with running(agent([call("launch")], tools=[launch])) as app:
        result = await (await app.start("a", "go")).wait()

    assert (result.status, known(result.error).code) == ("failed", "INTERRUPTED")


@pytest.mark.parametrize(
    ("found", "told", "runs"), [("already paid", "already paid", 1), (NotDone, "paid", 2)]
)
async def test_an_interrupted_tool_may_ask_the_outside_world(
    found: object, told: str, runs: int
) -> None:
    ran: list[int] = []

    async def reconcile(ctx: Context, args: dict[str, object]) -> object:
        assert args == {"cents": 5}
        return found

    @tool(on_interrupt=reconcile, timeout=0.01)
    async def pay(cents: int) -> str:
        ran.append(cents)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "paid"

    async with running(agent([call("pay", cents=5), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == [told]
        assert len(ran) == runs


@pytest.mark.parametrize(
    ("option", "text", "told", "runs"),
    [
        ("done", "receipt 17", "receipt 17", 1),
        ("rerun", None, "paid", 2),
        ("give_up", None, "The outcome of this call is unknown", 1),
    ],
)
async def test_an_interrupted_tool_may_ask_a_human(
    option: str, text: str | None, told: str, runs: int
) -> None:
    ran: list[int] = []

    @tool(on_interrupt="ask", timeout=0.01)
    async def pay() -> str:
        ran.append(1)
        if len(ran) == 1:
            await asyncio.Event().wait()
        return "paid"

    async with running(agent([call("pay"), say("done")], tools=[pay])) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        await session.answer(asked.requests[0].request_id, option, text=text)
        await session.wait()

        [result] = await results_of(session)
        assert result.startswith(told)
        assert len(ran) == runs


async def test_a_result_that_cannot_be_stored_is_an_interruption(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @tool
    async def pay() -> object:
        return object()

    async with running(agent([call("pay"), say("hm")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "unstorable"
        [said] = [line for line in caplog.records if "cannot be stored" in line.message]
        assert vars(said)["tool"] == "pay"
        assert "object" in vars(said)["why"]


@pytest.mark.parametrize("promise", ["idempotent", "readonly"])
async def test_a_tool_whose_result_cannot_be_stored_is_not_run_again(promise: str) -> None:
    ran: list[int] = []

    @tool(**{promise: True})  # type: ignore[call-overload,untyped-decorator]
    async def look() -> object:
        ran.append(1)
        return object()

    async with running(agent([call("look"), say("hm")], tools=[look])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "hm"
        assert len(ran) == 1
        assert "unknown" in (await results_of(session))[0]


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
async def test_a_number_that_json_has_no_word_for_is_refused_wherever_a_tool_gives_it(
    number: str,
) -> None:
    @dataclass
    class Reading:
        degrees: float

    told: list[str] = []

    @tool
    async def measure(ctx: Context) -> None:
        for deed in (
            ctx.step(lambda: [Reading(float(number))], name="read"),
            asyncio.to_thread(ctx.session.mutate(Reading).seed, Reading(float(number))),
        ):
            with pytest.raises(OutlastError) as refused:
                await deed
            told.append(refused.value.message)
        assert await ctx.step(lambda: {"degrees": None}, name="nothing") == {"degrees": None}

    async with running(agent([call("measure"), say("done")], tools=[measure])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["null"]
        assert [f"JSON has no word for {number}" in each for each in told] == [True, True]


AWAITED = ["ask", "sleep", "step", "heartbeat", "agent", "session.set_continuation_token"]


@pytest.mark.parametrize("what", AWAITED)
async def test_what_has_to_be_awaited_is_refused_in_a_sync_tool(what: str) -> None:
    given = {
        "ask": lambda ctx: ctx.ask("Sure?"),
        "sleep": lambda ctx: ctx.sleep(timedelta(seconds=1)),
        "step": lambda ctx: ctx.step(lambda: 1, name="one"),
        "heartbeat": lambda ctx: ctx.heartbeat(),
        "agent": lambda ctx: ctx.agent("a"),
        "session.set_continuation_token": lambda ctx: ctx.session.set_continuation_token("mine"),
    }

    @tool
    def pay(ctx: Context) -> str:
        given[what](ctx)
        return "asked nobody"

    async with running(agent([call("pay"), say("hm")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [told] = await results_of(session)
        assert f"ctx.{what} has to be awaited: write pay as `async def`" in told


async def test_an_async_tool_behind_a_plain_function_is_awaited() -> None:
    async def pay(ctx: Context, cents: int) -> str:
        await ctx.heartbeat("about to")
        return f"{cents} paid"

    @wraps(pay)
    def counted(*args: Any, **named: Any) -> Any:
        return pay(*args, **named)

    async with running(agent([call("pay", cents=5), say("done")], tools=[tool(counted)])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["5 paid"]


@tool
async def ask_oddly(ctx: Context) -> None:
    await ctx.ask("delete caf\udce9?")


@tool
async def step_oddly(ctx: Context) -> None:
    await ctx.step(lambda: 1, name="caf\udce9")


@pytest.mark.parametrize("odd", [ask_oddly, step_oddly])
async def test_what_cannot_be_stored_interrupts_its_tool_and_no_other(odd: Tool) -> None:
    script = [calls((odd.name, {}), ("noop", {})), say("hm")]
    async with running(agent(script, tools=[odd, noop])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "hm"

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "unstorable"
        assert (await results_of(session))[1] == "nothing"


@pytest.mark.parametrize("error", [ConnectionError("the bank is away"), Panic("help")], ids=repr)
async def test_a_call_that_nobody_can_find_out_about_is_reported_and_not_run_again(
    error: BaseException,
) -> None:
    ran: list[int] = []

    async def ask_the_bank(ctx: Context, args: dict[str, object]) -> None:
        raise error

    @tool(on_interrupt=ask_the_bank, timeout=0.01)
    async def pay() -> None:
        ran.append(1)
        await asyncio.Event().wait()

    async with running(agent([call("pay"), say("hm")], tools=[pay])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert [e.data for e in await the(session, "tool.interrupted")] == [
            {"reason": "timeout", "final": False},
            {"reason": "unreconciled"},
        ]
        [told] = await results_of(session)
        assert "outcome of this call is unknown" in told
        assert ran == [1]


class Loud(str):
    """A text of somebody's own kind."""


def raising(error: Exception) -> Callable[[Context], Any]:
    async def fail(ctx: Context) -> None:
        raise error

    return fail


def returning(value: Any) -> Callable[[Context], Any]:
    async def give(ctx: Context) -> Any:
        return value

    return give


async def emit(ctx: Context, name: Any) -> str:
    ctx.emit(name, 1)
    return "emitted"


def rekey(ctx: Context, token: Any, revoke: Any = ()) -> Any:
    return ctx.session.set_continuation_token(token, revoke=revoke)


DEEDS: dict[str, tuple[Callable[[Context], Any], str]] = {
    "an error that is a number": (raising(ToolError(7)), "TOOL_ERROR: 7"),  # type: ignore[arg-type]
    "an error of an error": (raising(ToolError(ValueError("no card"))), "TOOL_ERROR: no card"),  # type: ignore[arg-type]
    "an error of many": (raising(Retry(["cents", "to"])), "RETRY: ['cents', 'to']"),  # type: ignore[arg-type]
    "a message that is a number": (returning(ToolResult(7, 5)), "7"),  # type: ignore[arg-type]
    "a message that is a list": (returning(ToolResult(["a"], 5)), '["a"]'),  # type: ignore[arg-type]
    "a message of another kind": (returning(ToolResult(Loud("hey"), 5)), "hey"),
    "a message in halves": (returning(ToolResult("caf\udce9", 5)), "caf?"),
    "no message": (returning(ToolResult(None, 5)), "5"),  # type: ignore[arg-type]
    "an event that is a number": (lambda ctx: emit(ctx, 7), "INVALID_NAME"),
    "an event of another kind": (lambda ctx: emit(ctx, Loud("hey")), "emitted"),
    "an event in halves": (lambda ctx: emit(ctx, "caf\udce9"), "INVALID_NAME"),
    "a question that is a number": (lambda ctx: ctx.ask(7), "INVALID_INPUT"),  # type: ignore[arg-type]
    "a question in halves": (lambda ctx: ctx.ask("caf\udce9"), "unknown"),
    "options that are numbers": (lambda ctx: ctx.ask("?", [1, 2]), "INVALID_INPUT"),  # type: ignore[list-item]
    "options without a label": (lambda ctx: ctx.ask("?", [Option("a", None)]), "INVALID_INPUT"),  # type: ignore[arg-type]
    "options in one": (lambda ctx: ctx.ask("?", "yes"), "INVALID_INPUT"),
    "an answer in seven": (lambda ctx: ctx.ask("?", timeout="7"), "INVALID_INPUT"),  # type: ignore[arg-type]
    "an expiry unheard of": (lambda ctx: ctx.ask("?", on_expiry="x"), "INVALID_DEFINITION"),  # type: ignore[arg-type]
    "an answer by the end of time": (
        lambda ctx: ctx.ask("?", timeout=timedelta.max),
        "INVALID_INPUT",
    ),
    "sleep for ever": (lambda ctx: ctx.sleep(timedelta.max), "INVALID_INPUT"),
    "wait until the end of time": (
        lambda ctx: ctx.wait_until(datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))),
        "INVALID_INPUT",
    ),
    "sleep for a text": (lambda ctx: ctx.sleep("7"), "INVALID_INPUT"),  # type: ignore[arg-type]
    "wait until a number": (lambda ctx: ctx.wait_until(7), "INVALID_INPUT"),  # type: ignore[arg-type]
    "a token that is a number": (lambda ctx: rekey(ctx, 7), "INVALID_NAME"),
    "an agent's own token": (lambda ctx: rekey(ctx, "agent:a:bob"), "INVALID_NAME"),
    "revoked numbers": (lambda ctx: rekey(ctx, "new", [7]), "INVALID_NAME"),
    "a revoked text": (lambda ctx: rekey(ctx, "new", "old"), "INVALID_INPUT"),
}


@pytest.mark.parametrize("deed", DEEDS)
async def test_what_a_tool_gives_of_a_wrong_type_leaves_the_session_readable(deed: str) -> None:
    do, told = DEEDS[deed]

    @tool
    async def act(ctx: Context) -> Any:
        return await do(ctx)

    async with running(agent([call("act"), say("well")], tools=[act])) as app:
        session = await app.start("a", "go")

        assert (await session.wait()).output == "well"
        [said] = await results_of(session)
        assert told in said
        assert await app.requests() == ()


async def test_a_question_that_wants_its_answer_at_once_waits_for_none() -> None:
    @tool
    async def act(ctx: Context) -> str:
        return (await ctx.ask("Why?", timeout=timedelta(0))).text

    async with running(agent([call("act"), say("well")], tools=[act])) as app:
        session = await app.start("a", "go")
        await seen(session, "turn.completed")

        assert await results_of(session) == ["TOOL_ERROR: nobody answered in time"]


async def test_a_question_that_takes_any_answer_by_some_other_word_for_true_is_asked() -> None:
    @tool
    async def act(ctx: Context) -> str:
        return (await ctx.ask("Why?", allow_freeform=1)).text  # type: ignore[arg-type]

    async with running(agent([call("act"), say("well")], tools=[act])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, text="because")

        assert (await session.wait()).output == "well"
        assert await results_of(session) == ["because"]


# Sync tools


async def test_a_sync_tool_runs_in_a_thread_with_the_callers_context_variables() -> None:
    tenant = contextvars.ContextVar("tenant", default="none")

    threads: list[str] = []

    @tool(readonly=True)
    def look() -> str:
        threads.append(threading.current_thread().name)
        return tenant.get()

    tenant.set("acme")
    async with running(agent([call("look"), say("done")], tools=[look])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["acme"]
        assert threads == ["outlast tool"]


async def test_a_sync_tool_does_not_hold_up_the_others() -> None:
    async_ran = threading.Event()

    @tool(readonly=True)
    def blocks() -> bool:
        return async_ran.wait(5)

    @tool(readonly=True)
    async def quick() -> str:
        async_ran.set()
        return "quick"

    script = [calls(("blocks", {}), ("quick", {})), say("done")]
    async with running(agent(script, tools=[blocks, quick])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ["true", "quick"]


async def test_a_sync_tool_that_never_returns_is_abandoned_and_its_late_result_dropped() -> None:
    release, ended = threading.Event(), threading.Event()

    @tool(timeout=0.01)
    def pay() -> str:
        release.wait(60)
        ended.set()
        return "paid"

    async with running(agent([call("pay"), say("hm"), say("later")], tools=[pay])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "hm"

        release.set()
        await asyncio.to_thread(ended.wait, 60)
        receipt = await session.send("and now?")

        assert (await receipt.result()).output == "later"
        assert await the(session, "tool.completed") == []


def everything_taken() -> tuple[Tool, list[tuple[str, dict[str, int]]], threading.Event]:
    """A tool, as many calls of it as there are threads, and what lets them end."""
    release = threading.Event()

    @tool(readonly=True)
    def block(n: int) -> None:
        release.wait(60)

    return block, [("block", {"n": n}) for n in range(64)], release


async def test_a_sync_tool_that_waits_for_a_thread_has_not_begun_and_spends_no_time() -> None:
    block, blocked, release = everything_taken()
    ran: list[int] = []

    @tool(timeout=0.01)
    def pay() -> str:
        ran.append(1)
        return "paid"

    script = [calls(*blocked, ("pay", {})), say("done")]
    async with running(agent(script, tools=[block, pay])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started", 64)
        await asyncio.to_thread(release.wait, 0.05)  # longer than the tool may take
        begun = {event.call_id for event in await the(session, "tool.started")}
        release.set()
        await session.wait()

        assert begun == {f"t1.s1.c{n}" for n in range(1, 65)}
        assert (await results_of(session))[-1] == "paid"
        assert ran == [1]


async def test_a_sync_tool_that_waited_for_a_thread_when_its_worker_stopped_has_not_begun(
    tmp_path: Path,
) -> None:
    block, blocked, release = everything_taken()
    paid: list[str] = []

    @tool
    def pay(ctx: Context) -> str:
        paid.append(ctx.idempotency_key)
        return "paid"

    script = [calls(*blocked, ("pay", {})), say("done")]
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with running(agent(script, tools=[block, pay]), store=url) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started", 64)
    release.set()
    async with running(agent(script, tools=[block, pay]), store=url) as app:
        session = await app.session(session.id)
        await session.wait()

        assert (await results_of(session))[-1] == "paid"
        assert len(paid) == 1
        assert await the(session, "tool.interrupted") == []


async def test_a_sync_tool_that_had_no_thread_when_its_turn_was_cancelled_was_not_run() -> None:
    block, blocked, release = everything_taken()
    ran: list[str] = []

    @tool
    def note(what: str) -> None:
        ran.append(what)

    script = [calls(*blocked, ("note", {"what": "old"})), call("note", what="new"), say("done")]
    async with running(agent(script, tools=[block, note])) as app:
        session = await app.start("a", "go")
        await until(session, "tool.started", 64)
        await session.cancel()
        await session.wait()
        release.set()
        await (await session.send("again")).result()

        [not_run] = await the(session, "tool.failed")
        assert not_run.data["error"]["code"] == "NOT_RUN"
        assert ran == ["new"]


# Steps, waits


async def test_a_step_is_done_once_however_often_its_tool_is_run_again() -> None:
    quotes: list[int] = []

    async def fetch_quote(base: int) -> int:
        quotes.append(base)
        return base + len(quotes)

    @tool
    async def buy(ctx: Context) -> str:
        price = await ctx.step(fetch_quote, 100, name="quote")
        answer = await ctx.ask(f"Buy at {price}?", ["yes", "no"])
        return f"{answer.option} at {price}"

    async with running(agent([call("buy"), say("done")], tools=[buy])) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        await session.answer(asked.requests[0].request_id, "yes")
        await session.wait()

        assert asked.requests[0].prompt == "Buy at 101?"
        assert await results_of(session) == ["yes at 101"]
        assert quotes == [100]


async def test_steps_of_one_name_that_follow_one_another_are_several_steps_in_every_run() -> None:
    sent: list[str] = []
    runs: list[list[str]] = []

    def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    @tool
    async def mail(ctx: Context) -> list[str]:
        runs.append([await ctx.step(send, to, name="send") for to in "abc"])
        await ctx.sleep(timedelta(milliseconds=1))
        runs[-1].append(await ctx.step(send, "d", name="send"))
        await ctx.sleep(timedelta(milliseconds=1))
        return runs[-1]

    async with running(agent([call("mail"), say("done")], tools=[mail])) as app:
        session = await app.start("a", "go")
        await session.wait()

    every = [f"sent to {to}" for to in "abcd"]
    assert sent == ["a", "b", "c", "d"]
    assert runs == [every[:3], every, every]


async def test_a_step_that_raised_is_recorded_and_the_next_of_its_name_is_another() -> None:
    done: list[str] = []

    def draw(number: str) -> str:
        done.append(number)
        if len(done) == 1:
            raise ConnectionError("away")
        return number

    @tool
    async def lottery(ctx: Context) -> list[str]:
        try:
            first = await ctx.step(draw, "one", name="draw")
        except StepError:
            first = await ctx.step(draw, "one again", name="draw")
        second = await ctx.step(draw, "two", name="draw")
        await ctx.sleep(timedelta(milliseconds=1))
        return [first, second]

    async with running(agent([call("lottery"), say("done")], tools=[lottery])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ['["one again","two"]']
        assert done == ["one", "one again", "two"]


async def test_steps_of_one_name_in_branches_are_told_apart_by_their_branch() -> None:
    sent: list[str] = []

    async def send(to: str) -> str:
        sent.append(to)
        await asyncio.sleep(0.01)
        return f"{to} got it"

    @tool
    async def mail(ctx: Context) -> dict[str, str]:
        both = {to: ctx.step(send, to, name="send") for to in (sent and "ba") or "ab"}
        got = await ctx.gather(**both)
        await ctx.sleep(timedelta(milliseconds=1))
        return got

    async with running(agent([call("mail"), say("done")], tools=[mail])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ['{"b":"b got it","a":"a got it"}']
        assert sent == ["a", "b"]


async def test_a_step_within_a_step_of_its_name_is_refused() -> None:
    @tool
    async def mail(ctx: Context) -> None:
        await ctx.step(lambda: ctx.step(lambda: "sent", name="send"), name="send")

    async with running(agent([call("mail"), say("sorry")], tools=[mail])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [told] = await results_of(session)
        assert "the step 'send' is done within a step of the same name" in told


async def test_a_tool_may_sleep_for_days_and_holds_nothing_meanwhile() -> None:
    runs: list[int] = []

    @tool
    async def remind(ctx: Context) -> str:
        runs.append(ctx.attempt)
        await ctx.sleep(timedelta(days=3))
        return "woken"

    async with at_standstill(agent([call("remind"), say("done")], tools=[remind])) as (app, clock):
        session = await app.start("a", "go")
        waiting = await until(session, "session.waiting")
        assert waiting.data["wait"] == ("timer",)
        assert (await session.info()).lanes[0].worker == ""

        clock.advance(3 * 86_400_000)
        assert (await session.wait()).output == "done"
        assert runs == [1, 2]


async def test_cleanup_of_a_tool_that_parks_runs_and_cannot_swallow_the_park() -> None:
    cleaned: list[str] = []

    @tool
    async def careful(ctx: Context) -> str:
        try:
            answer = await ctx.ask("Go on?")
        except Exception:  # noqa: BLE001 - what users write
            return "swallowed"
        finally:
            cleaned.append("cleaned")
        return answer.text

    async with running(agent([call("careful"), say("done")], tools=[careful])) as app:
        session = await app.start("a", "go")
        asked = await session.wait()
        await session.answer(asked.requests[0].request_id, text="yes")
        await session.wait()

        assert await results_of(session) == ["yes"]
        assert cleaned == ["cleaned", "cleaned"]


# What a tool leaves behind


class Cart(BaseModel):
    items: list[str] = []


class Visit(BaseModel):
    page: str


async def test_slices_are_put_appended_updated_and_queried() -> None:
    @tool
    async def shop(ctx: Context, item: str) -> list[str]:
        ctx.session.mutate(Visit).append(Visit(page=item))
        ctx.session.mutate(Cart).update(lambda c: Cart(items=[*(c.items if c else []), item]))
        return known(ctx.session.query(Cart).latest()).items

    script = [call("shop", item="tea"), call("shop", item="cup"), say("done")]
    async with running(agent(script, tools=[shop])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await results_of(session) == ['["tea"]', '["tea","cup"]']
        assert await session.query(Cart).all() == [Cart(items=["tea", "cup"])]
        assert await session.query(Visit).all() == [Visit(page="tea"), Visit(page="cup")]


async def test_updates_of_tools_that_run_side_by_side_are_all_kept() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def shop(ctx: Context, item: str) -> str:
        ctx.session.mutate(Cart).update(lambda c: Cart(items=[*(c.items if c else []), item]))
        await both.wait()
        return item

    script = [calls(("shop", {"item": "tea"}), ("shop", {"item": "cup"})), say("done")]
    async with running(agent(script, tools=[shop])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert sorted(known(await session.query(Cart).latest()).items) == ["cup", "tea"]


async def test_an_update_that_fails_when_it_is_recorded_interrupts_its_tool_and_no_other() -> None:
    seen: list[Cart | None] = []

    def fill(cart: Cart | None) -> Cart:
        seen.append(cart)
        if len(seen) > 1:
            raise ValueError("the cart is full")
        return Cart(items=["tea"])

    @tool
    async def shop(ctx: Context) -> None:
        ctx.session.mutate(Cart).update(fill)

    script = [calls(("shop", {}), ("noop", {})), say("hm")]
    async with running(agent(script, tools=[shop, noop])) as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "hm"

        [cut] = await the(session, "tool.interrupted")
        assert cut.data["reason"] == "unstorable"
        assert (await results_of(session))[1] == "nothing"
        assert await session.query(Cart).all() == []


async def test_a_failed_attempt_leaves_no_state_and_no_events() -> None:
    @tool(readonly=True, max_attempts=2)
    async def note(ctx: Context) -> str:
        ctx.session.mutate(Visit).seed(Visit(page=f"attempt {ctx.attempt}"))
        ctx.emit("noted", {"attempt": ctx.attempt})
        if ctx.attempt == 1:
            raise ToolError("busy")
        return "noted"

    async with at_standstill(agent([call("note"), say("done")], tools=[note])) as (app, clock):
        session = await app.start("a", "go")
        await pass_pause(session, clock, 1)
        await session.wait()

        assert await session.query(Visit).all() == [Visit(page="attempt 2")]
        assert [e.data for e in await the(session, "tool.emitted")] == [
            {"name": "noted", "data": {"attempt": 2}}
        ]


async def test_emitted_events_come_with_the_outcome_and_progress_at_once() -> None:
    may_end = asyncio.Event()

    @tool
    async def build(ctx: Context) -> str:
        ctx.emit("built", 1)
        await ctx.heartbeat({"percent": 50})
        await may_end.wait()
        return "built"

    async with running(agent([call("build"), say("done")], tools=[build])) as app:
        session = await app.start("a", "go")
        progress = await until(session, "tool.progress")
        assert progress.data["progress"] == {"percent": 50}
        assert await the(session, "tool.emitted") == []

        may_end.set()
        await session.wait()
        kinds = await types_of(session)
        assert kinds.index("tool.emitted") + 1 == kinds.index("tool.completed")


async def test_of_progress_that_comes_quickly_the_first_and_the_last_are_kept() -> None:
    @tool
    async def build(ctx: Context) -> str:
        for percent in range(0, 101, 10):
            await ctx.heartbeat(percent)
        return "built"

    settings = replace(FAST, flush=60.0)
    building = agent([call("build"), say("done")], tools=[build])
    async with running(building, settings=settings) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert [e.data["progress"] for e in await the(session, "tool.progress")] == [0, 100]
        assert " tool.progress tool.completed " in " ".join(await types_of(session))


async def test_the_last_progress_is_shown_while_the_tool_goes_on() -> None:
    may_end = asyncio.Event()

    @tool
    async def build(ctx: Context) -> str:
        await ctx.heartbeat(1)
        await ctx.heartbeat(2)
        await ctx.heartbeat(3)
        await may_end.wait()
        return "built"

    settings = replace(FAST, flush=0.01)
    async with running(
        agent([call("build"), say("done")], tools=[build]), settings=settings
    ) as app:
        session = await app.start("a", "go")
        async with asyncio.timeout(60):
            async for event in session.events():
                if event.type == "tool.progress" and event.data["progress"] == 3:
                    break
        may_end.set()
        assert (await session.wait()).output == "done"


async def test_a_tool_knows_the_session_that_it_works_for() -> None:
    @tool(readonly=True)
    async def who(ctx: Context) -> list[str]:
        s = ctx.session
        return [s.id, s.turn, s.lane, s.agent, s.tenant, s.principal]

    async with running(agent([call("who"), say("done")], tools=[who])) as app:
        session = await app.start("a", "go", tenant="acme", principal="ada")
        await session.wait()

        [done] = await the(session, "tool.completed")
        assert done.data["value"] == [session.id, "t1", "main", "a", "acme", "ada"]
