"""Bodies that touch clock, chance or the network past their context are warned of."""

import asyncio
import datetime as dt
import http.client
import logging
import os
import random
import socket
import time
import urllib.parse
import uuid
import warnings
from collections.abc import Callable
from time import time as clock
from typing import Any

import pytest
from scene import running

from outlast import WorkflowContext, workflow
from outlast.workflows import WorkflowWarning, body_watch

dice = random.Random()


def warned(make: Callable[[], Any]) -> list[tuple[int, str]]:
    """What is warned of while a workflow is defined: the line within `make`, and the words."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    assert all(each.category is WorkflowWarning for each in caught)
    assert all(each.filename == __file__ for each in caught)
    first = make.__code__.co_firstlineno
    return [(each.lineno - first, str(each.message)) for each in caught]


def test_each_call_past_the_context_is_named_with_its_line_and_the_way() -> None:
    def make() -> None:
        @workflow
        async def careless(ctx: WorkflowContext) -> None:
            clock()
            dt.datetime.now(dt.UTC)
            random.choice([1])
            dice.random()
            str(uuid.uuid4())
            os.urandom(2)
            await asyncio.sleep(1)
            socket.create_connection(("a", 1))
            http.client.HTTPConnection("a")

    found = warned(make)

    assert [line for line, _ in found] == [*range(3, 12)]
    assert found[0][1] == (
        "the body of the workflow careless calls clock(), and runs again from its first line after"
        " each wait: use ctx.now() instead"
    )
    ways = [said.rpartition("use ")[2].removesuffix(" instead") for _, said in found]
    assert ways == [
        *("ctx.now()", "ctx.now()", "ctx.random()", "ctx.random()", "ctx.uuid()", "ctx.random()"),
        *("await ctx.sleep(…)", "a step: await ctx.step(…)", "a step: await ctx.step(…)"),
    ]


async def pause(ctx: WorkflowContext, seconds: float) -> None:
    await asyncio.sleep(seconds)


def test_branches_and_functions_that_are_given_the_context_belong_to_the_body() -> None:
    def make() -> None:
        @workflow
        async def careless(ctx: WorkflowContext) -> None:
            async def branch(item: int) -> float:
                return time.time()

            await ctx.map(branch, [1])
            await pause(ctx, 1)

    found = [said for _, said in warned_anywhere(make)]

    assert len(found) == 2
    assert "time.time()" in found[0]
    assert "asyncio.sleep()" in found[1]


def warned_anywhere(make: Callable[[], Any]) -> list[tuple[int, str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [(each.lineno, str(each.message)) for each in caught]


class time_of_ours:
    @staticmethod
    def time() -> float:
        return 0.0


def test_what_is_done_in_steps_or_is_none_of_these_is_not_warned_of() -> None:
    def make() -> None:
        def look() -> float:
            return time.time()

        @workflow
        async def careful(ctx: WorkflowContext, url: str) -> None:
            async def fetch() -> bytes:
                return bytes(http.client.HTTPConnection(url).getresponse().read())

            def undo() -> None:
                socket.create_connection(("a", 1))

            ctx.on_undo(undo)
            await ctx.step(time.time)
            await ctx.step(fetch)
            await ctx.step(look)
            await ctx.step(lambda: time.time(), name="time")
            random = ctx.random()
            _ = (random, time_of_ours.time(), urllib.parse.quote(url), dt.timedelta(days=1))
            await asyncio.sleep(0)
            try:
                await ctx.step(fetch, name="again")
            except OSError as error:
                raise socket.herror from error

    assert warned(make) == []


def test_a_body_without_source_is_defined_in_silence() -> None:
    names: dict[str, Any] = {"workflow": workflow, "WorkflowContext": WorkflowContext}
    source = """
@workflow
async def unread(ctx: WorkflowContext) -> None:
    import time
    time.time()
"""
    exec(source, names)  # noqa: S102 - there is no file of it

    assert names["unread"].name == "unread"


async def test_a_wait_that_the_context_does_not_know_of_is_named_with_its_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(body_watch, "INTERVAL", 0.01)
    seen = asyncio.Event()

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "its context knows nothing" in record.getMessage():
                seen.set()

    async def hidden(event: asyncio.Event) -> None:
        await event.wait()

    async def slow() -> int:
        return await asyncio.sleep(0.1, 1)

    @workflow
    async def flow(ctx: WorkflowContext) -> None:
        await ctx.gather(ctx.step(slow), ctx.step(slow, name="again"))
        await ctx.step(slow, name="once more")
        await ctx.gather(hidden(seen))

    handler, log = Seen(), logging.getLogger("outlast.workflows")
    log.addHandler(handler)
    try:
        async with running(flow) as app:
            (await (await app.run(flow)).wait(timeout=30)).unwrap()
    finally:
        log.removeHandler(handler)

    said = [r.getMessage() for r in caplog.records if "knows nothing" in r.getMessage()]
    place = f"{__file__}:{hidden.__code__.co_firstlineno + 1}"
    assert len(said) == 1
    assert f"the body of the workflow flow waits at {place}" in said[0]
