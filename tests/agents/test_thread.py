import asyncio
import logging
import threading
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene import running, until

from outlast import Agent, Context, tool
from outlast.agents.runtime.thread import ThreadSlot, ToolThreads
from outlast.testing.scripted import ScriptedModel, call, say


class Line:
    """Threads for one at a time, and who has been told that it is theirs."""

    def __init__(self) -> None:
        self.threads = ToolThreads(1)
        self.told: list[str] = []

    def ask(self, name: str) -> ThreadSlot:
        return self.threads.place(lambda: self.told.append(name))


def test_who_finds_a_thread_has_it_at_once_and_is_not_told() -> None:
    line = Line()

    place = line.ask("first")

    assert place.is_taken
    assert line.told == []


def test_threads_go_round_in_the_order_in_which_they_were_asked_for() -> None:
    line = Line()
    first, second, third = (line.ask(name) for name in ("first", "second", "third"))

    assert not second.is_taken
    first.leave()
    assert line.told == ["second"]
    second.leave()
    assert line.told == ["second", "third"]
    assert third.is_taken


def test_who_leaves_the_line_is_not_waited_for() -> None:
    line = Line()
    first, second, third = (line.ask(name) for name in ("first", "second", "third"))

    second.leave()
    first.leave()

    assert line.told == ["third"]
    assert third.is_taken


def test_a_place_that_is_left_twice_is_free_once() -> None:
    line = Line()
    first, _, third = (line.ask(name) for name in ("first", "second", "third"))

    first.leave()
    first.leave()

    assert line.told == ["second"]
    assert not third.is_taken


async def test_a_place_that_is_left_while_something_runs_there_is_free_when_that_has_ended() -> (
    None
):
    line = Line()
    release = threading.Event()
    first, second = line.ask("first"), line.ask("second")
    running = first.begin(lambda: release.wait(60))

    first.leave()
    before = second.is_taken
    release.set()
    await running

    assert not before
    assert second.is_taken


async def test_one_place_serves_several_functions_one_after_the_other() -> None:
    place = Line().ask("only")

    assert [await place.begin(partial(int, n)) for n in range(3)] == [0, 1, 2]


async def test_who_is_cancelled_in_the_line_leaves_it() -> None:
    line = Line()
    first = line.ask("first")
    waiting = asyncio.create_task(line.threads.run(lambda: None))
    await asyncio.sleep(0)
    last = line.ask("last")

    waiting.cancel()
    await asyncio.wait([waiting])
    first.leave()

    assert last.is_taken


async def test_a_function_that_fails_gives_its_thread_back() -> None:
    line = Line()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await line.threads.run(fail)

    assert line.ask("next").is_taken


def test_that_all_threads_are_taken_is_said_once_for_a_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = Line()
    with caplog.at_level(logging.INFO, "outlast.agents"):
        for name, times in (("first", 0), ("second", 1), ("third", 1)):
            line.ask(name)
            told = [record.message for record in caplog.records]
            assert told == ["all threads are taken: a sync tool waits for one"] * times


# Shares


def test_a_free_thread_goes_to_the_tenant_that_has_the_fewest() -> None:
    threads, told = ToolThreads(3), list[str]()

    def ask(tenant: str, number: int) -> ThreadSlot:
        return threads.place(lambda: told.append(f"{tenant}{number}"), tenant)

    a = [ask("a", number) for number in range(6)]
    b = [ask("b", number) for number in range(2)]
    c = [ask("c", 0)]
    assert [place.is_taken for place in a] == [True] * 3 + [False] * 3
    assert not any(place.is_taken for place in (*b, *c))

    for place in a[:3]:
        place.leave()

    assert told == ["b0", "c0", "a3"]
    c[0].leave()
    assert told[3:] == ["a4"]  # it has waited for longer than b1, and has as many
    a[3].leave()
    a[4].leave()
    assert told[4:] == ["a5", "b1"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(0, 30)), max_size=60))
def test_no_tenant_gets_a_thread_while_another_with_fewer_waits(
    steps: list[tuple[str, bool, int]],
) -> None:
    threads = ToolThreads(4)
    places: list[ThreadSlot] = []

    def taken(tenant: str) -> int:
        return sum(place.is_taken for place in places if place.tenant == tenant)

    for tenant, comes, chosen in steps:
        before = [place for place in places if place.is_taken]
        if comes or not places:
            places.append(threads.place(lambda: None, tenant))
        else:
            places.pop(chosen % len(places)).leave()
        waiting = {place.tenant for place in places if not place.is_taken}
        for place in places:
            if place.is_taken and place not in before:
                assert all(taken(place.tenant) - 1 <= taken(each) for each in waiting)
        assert sum(place.is_taken for place in places) == min(4, len(places))


async def test_a_tool_of_another_tenant_does_not_wait_behind_all_of_one_tenants() -> None:
    gate, order = threading.Event(), list[str]()

    @tool
    def slow(ctx: Context[Any]) -> str:
        gate.wait()
        return "done"

    @tool
    def quick(ctx: Context[Any]) -> str:
        order.append(ctx.session.tenant)
        return "done"

    script = [call("slow"), call("quick"), say("ok")]
    greedy = Agent("greedy", ScriptedModel(script), tools=[slow, quick])
    modest = Agent("modest", ScriptedModel([call("quick"), say("ok")]), tools=[quick])
    async with running(greedy, modest) as app:
        many = [await app.start("greedy", "go", tenant="a") for _ in range(70)]
        for session in many[:64]:
            await until(session, "tool.started")
        other = await app.start("modest", "go", tenant="b")
        await until(other, "tool.requested")
        gate.set()
        for session in (*many, other):
            await session.wait()

        assert order.index("b") == 0
