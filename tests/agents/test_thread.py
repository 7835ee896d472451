import asyncio
import logging
import threading

import pytest

from outlast.agents.runtime.thread import ThreadSlot, ToolThreads


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

    assert [await place.begin(lambda n=n: n) for n in range(3)] == [0, 1, 2]


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
        for name in ("first", "second", "third"):
            line.ask(name)

    [record] = caplog.records
    assert "all threads are taken" in record.message
