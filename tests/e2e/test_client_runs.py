"""Runs over the wire: the same code does the same as with the app itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from client_scene import LOST, BadWire, answer, far_away
from http_scene import FAST
from pydantic import BaseModel
from test_client_parity import Names

import outlast.sync
from outlast import Outlast, WorkflowContext, workflow
from outlast.client import Client, RemoteRun
from outlast.core.record import Failure
from outlast.errors import OutlastError, UnknownRun

Place = Any
"""An Outlast or a Client: what stands below does not care which."""


class Month(BaseModel):
    month: str


class Report(BaseModel):
    title: str


@workflow
async def report(ctx: WorkflowContext, given: Month) -> Report:
    for number in range(3):
        await ctx.step(abs, number, name=f"count {number}")
    title = await ctx.step(str.upper, given.month, name="title")
    ctx.emit("written", {"title": title})
    return Report(title=title)


@workflow
async def nap(ctx: WorkflowContext) -> str:
    await ctx.sleep(timedelta(days=1))
    return "rested"


@workflow
async def fall(ctx: WorkflowContext) -> None:
    await ctx.step(abs, -1)
    raise ValueError("the stairs")


@workflow
async def ask(ctx: WorkflowContext) -> str:
    paid = await ctx.wait_event("paid", timeout=timedelta(days=1))
    return f"{paid} {(await ctx.ask('Go on?', ['yes', 'no'])).option}"


WORKFLOWS = (report, nap, fall, ask)
TOO_LATE = Failure("DEADLINE_EXCEEDED", "the deadline has passed")
TAGS = {"customer": "42"}


async def work(place: Place, seen: list[Any]) -> None:
    """Start, read, answer, send, cancel, fail, retry and list, and note all that is given."""
    given = {"dispatch_id": "june", "tags": TAGS}
    run = await place.run(report, Month(month="june"), **given)
    again = await place.run("report", {"month": "june"}, **given)
    seen += [run.duplicate, again.duplicate, again.id == run.id, run.id]
    seen += [await run.wait(), (await run.wait()).unwrap()]
    seen += [event async for event in run.events()]
    seen += [event async for event in run.events(follow=False)][-1:]
    seen += [event async for event in run.events(3, internals=True)]
    seen += [await run.meta(), await run.status(), *await run.steps(), await run.usage()]
    seen += [(await (await place.get_run(run.id)).meta()).output]

    asked = await place.run(ask)
    for _ in range(2):
        await asked.send_event("paid", {"cents": 500}, dispatch_id="invoice-1")
    waiting = await asked.wait()
    seen += [waiting, *await asked.requests()]
    await asked.answer(waiting.requests[0].request_id, "yes")
    seen += [await asked.wait(), (await asked.info()).status]

    late = await place.run(nap, delay=timedelta(hours=1))
    seen += [(await late.wait(timeout=0)).status, await late.status()]
    await late.cancel("no need")
    seen += [await late.wait(), await late.meta()]
    over = await place.run(nap, delay=timedelta(hours=1), deadline=timedelta(milliseconds=1))
    seen += [await over.wait(), await over.meta()]
    assert (await over.wait()).error == (await over.meta()).error == TOO_LATE

    failed = await place.run(fall)
    seen += [await failed.wait(), await failed.meta(), *await failed.steps()]
    retried = await failed.retry(dispatch_id="again")
    twice = await failed.retry(dispatch_id="again")
    seen += [retried.id == twice.id != failed.id, retried.duplicate, twice.duplicate]
    seen += [await retried.wait(), await retried.meta()]

    for status in ("queued", "active", "waiting", "completed", "errored", "cancelled", None):
        seen.append([(each.workflow, each.status) for each in await place.runs(status=status)])
    for name in (report, "report", "gone"):
        seen.append([each.run_id for each in await place.runs(name, tags=TAGS)])
    first = await place.runs(limit=2)
    rest = await place.runs(before=first[-1].run_id, limit=2)
    seen += [each.workflow for each in (*first, *rest)]


async def test_the_same_code_runs_workflows_here_and_over_the_wire() -> None:
    near: list[Any] = []
    far: list[Any] = []
    async with Outlast(WORKFLOWS, store="memory://", worker=FAST) as app:
        await work(app, near)
    async with far_away(agents=WORKFLOWS) as there:
        await work(there.client, far)

    names, same = Names(), Names()
    assert [same.plain(each) for each in far] == [names.plain(each) for each in near]
    assert [type(each) for each in far] == [type(each) for each in near]


MISTAKES: dict[str, Callable[[Place, Any], Awaitable[Any]]] = {
    "UNKNOWN_WORKFLOW": lambda place, run: place.run("gone"),
    "INVALID_INPUT": lambda place, run: place.run("report", {"m": 1}),
    "NOT_ENCODABLE": lambda place, run: place.run("report", object()),
    "DISPATCH_CONFLICT": lambda place, run: place.run(
        "report", {"month": "july"}, dispatch_id="one"
    ),
    "UNKNOWN_RUN": lambda place, run: known(place, "run_none"),
    "NOTHING_TO_RETRY": lambda place, run: run.retry(),
    "SESSION_OVER": lambda place, run: run.send_event("paid"),
    "INVALID_NAME": lambda place, run: run.send_event("", 1),
    "UNKNOWN_REQUEST": lambda place, run: run.answer("req_none", "yes"),
}


async def known(place: Place, run_id: str) -> None:
    await place.get_run(run_id)


async def mistakes(place: Place) -> list[Any]:
    run = await place.run("report", {"month": "june"}, dispatch_id="one")
    await run.wait()
    found: list[Any] = []
    for code, make in MISTAKES.items():
        with pytest.raises(OutlastError) as caught:
            await make(place, run)
        assert caught.value.code == code
        found.append((type(caught.value).__name__, caught.value.message, caught.value.details))
    for wrong in ({"status": "failed"}, {"tags": {"a b": "c"}}, {"limit": 0}):
        with pytest.raises(OutlastError) as caught:
            await place.runs(**wrong)
        found.append(type(caught.value).__name__)
    return found


async def test_a_mistake_with_a_run_is_the_same_error_here_and_over_the_wire() -> None:
    async with (
        Outlast(WORKFLOWS, store="memory://", worker=FAST) as app,
        far_away(agents=WORKFLOWS, retry_timeout=0.0) as far,
    ):
        names, same = Names(), Names()
        here, there = names.plain(await mistakes(app)), same.plain(await mistakes(far.client))

    assert there == here


async def test_an_output_is_of_the_type_that_is_given_or_that_the_workflow_has() -> None:
    june = {"month": "june"}
    async with far_away(agents=WORKFLOWS) as far:
        typed = await far.client.run(report, Month(month="june"))
        named = await far.client.run("report", june, output_type=Report)
        found = far.client.get_run(typed.id, output_type=Report)
        plain = await far.client.run("report", june)
        failed = await far.client.run(fall)

        for run in (typed, named, found):
            assert (await run.wait()).unwrap() == Report(title="JUNE")
        assert (await plain.wait()).unwrap() == {"title": "JUNE"}
        assert (await (await failed.retry()).wait()).status == "errored"
        [title] = [step for step in await plain.steps() if "title" in step.name]
        assert (title.status, title.value) == ("completed", "JUNE")


NOT_NOW = '{"error": {"code": "STORE_UNAVAILABLE", "message": "try again", "details": {}}}'
BAD_ANSWERS = {
    "the connection's end": LOST,
    "503": answer(503, NOT_NOW, retry_after="0"),
    "504": answer(504),
}
Send = Callable[[Client, RemoteRun[Any]], Awaitable[Any]]

SENDERS: dict[str, Send] = {
    "run": lambda client, run: client.run("report", {"month": "june"}),
    "retry": lambda client, run: run.retry(),
    "event": lambda client, run: run.send_event("paid", 1),
    "cancel": lambda client, run: run.cancel(),
}


def bodies(wire: BadWire) -> list[dict[str, Any]]:
    posts = [each for each in wire.requests if each.startswith(b"POST")]
    return [json.loads(post.partition(b"\r\n\r\n")[2]) for post in posts]


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
@pytest.mark.parametrize("name", SENDERS)
async def test_what_is_asked_of_a_run_is_done_once_whatever_the_wire_says(
    name: str, bad: bytes
) -> None:
    async with far_away(agents=WORKFLOWS) as far:
        run: RemoteRun[Any] = await far.client.run(fall if name == "retry" else ask)
        if name == "retry":
            await run.wait()
        before = len(await far.app.runs())
        far.wire.instead, far.wire.requests = [bad, bad], []

        got = await SENDERS[name](far.client, run)

        sent = bodies(far.wire)
        assert len(sent) == 3
        assert sent[0] == sent[1] == sent[2]
        assert len(await far.app.runs()) == before + isinstance(got, RemoteRun)
        assert not isinstance(got, RemoteRun) or not got.duplicate, "nobody else had started it"
        if name == "event":
            types = [event.type async for event in run.events(follow=False, internals=True)]
            assert types.count("event.sent") == 1


async def test_a_run_of_another_tenant_is_not_there_for_a_client() -> None:
    async with far_away(agents=WORKFLOWS) as far:
        theirs = await far.app.run(nap, tenant="theirs")

        assert await far.client.runs() == ()
        handle = far.client.get_run(theirs.id)
        attempts: list[Awaitable[Any]] = [
            known(far.client, theirs.id),
            handle.wait(timeout=0),
            handle.info(),
            handle.steps(),
            handle.send_event("paid"),
            handle.retry(),
            handle.cancel(),
        ]
        for attempt in attempts:
            with pytest.raises(UnknownRun):
                await attempt
        with pytest.raises(UnknownRun):
            await anext(handle.events())


async def test_sync_code_runs_workflows_here_and_over_the_wire() -> None:
    def script(place: Outlast | Client) -> list[Any]:
        with outlast.sync.opened(place) as opened:
            run = opened.run(report, Month(month="june"), dispatch_id="june")
            found = [run.wait().unwrap(), [event.type for event in run.events()][-1]]
            again = opened.get_run(run.id)
            found += [again.meta().status, len(again.steps()), again.status()]
            waiting = opened.run(ask)
            waiting.send_event("paid", 1)
            waiting.answer(waiting.wait().requests[0].request_id, "no")
            found += [waiting.wait().output, [each.workflow for each in opened.runs()]]
            return found

    near = await asyncio.to_thread(script, Outlast(WORKFLOWS, store="memory://", worker=FAST))
    async with far_away(agents=WORKFLOWS) as far:
        there = await asyncio.to_thread(script, Client(far.url))

    assert there == near
    assert near[:3] == [Report(title="JUNE"), "session.completed", "completed"]
    assert near[-2:] == ["1 no", ["ask", "report"]]
