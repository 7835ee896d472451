"""Runs over HTTP, in the behaviours that Flue's users know: each test names one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from http_scene import FAST, OUTSIDE, Json, Scene
from pydantic import BaseModel

from outlast import Outlast, WorkflowContext, workflow
from outlast.server import ServerSettings
from outlast.server.asgi import create
from outlast.server.key import revoke_key


class Month(BaseModel):
    month: str


@workflow
async def report(ctx: WorkflowContext, given: Month) -> dict[str, str]:
    title = await ctx.step(str.upper, given.month, name="title")
    return {"title": title}


@workflow
async def nap(ctx: WorkflowContext) -> str:
    await ctx.sleep(timedelta(days=1))
    return "rested"


@workflow
async def fall(ctx: WorkflowContext) -> None:
    raise ValueError("the stairs")


@workflow
async def ask(ctx: WorkflowContext) -> str:
    return (await ctx.ask("Go on?", ["yes", "no"])).option


@workflow
async def pay(ctx: WorkflowContext) -> str:
    return str(await ctx.wait_event("paid", timeout=timedelta(days=1)))


PILE = [500_000, 500_000, 2_000_000, 400_000, 1]


@workflow
async def pile(ctx: WorkflowContext) -> None:
    for number, size in enumerate(PILE):
        await ctx.step("x".ljust, size, "x", name=f"step {number}")


@asynccontextmanager
async def yard(settings: ServerSettings | None = None, **given: Any) -> AsyncIterator[Scene]:
    options: Json = {"public_url": OUTSIDE, "worker": FAST, "store": "memory://", **given}
    async with Outlast([report, nap, fall, ask, pay, pile], **options) as app:
        made = Scene(app, create(app, settings or ServerSettings()))
        yield made
        made.api.state.backend.feeds.close()


JUNE: Json = {"input": {"month": "june"}}


async def test_a_run_is_started_and_its_stream_tells_the_rest() -> None:
    async with yard() as scene:
        caller = scene.caller()
        response = await caller.post("/v1/workflows/report", json=JUNE)
        started = response.json()
        run = started["run_id"]
        await (await scene.app.get_run(run)).wait()
        events = await caller.ask("GET", f"/runs/{run}?offset=-1")
        head = await caller.head(f"/v1/runs/{run}")

        url = f"{OUTSIDE}/v1/runs/{run}"
        assert (response.status_code, response.headers["location"]) == (202, url)
        assert started == {
            "run_id": run,
            "stream_url": url,
            "duplicate": False,
            "result": None,
        }
        assert events[0]["type"] == "session.started"
        assert events[-1]["type"] == "session.completed"
        assert head.headers["stream-closed"] == "true"


async def test_wait_result_answers_with_what_the_run_came_to() -> None:
    async with yard() as scene:
        caller = scene.caller()
        found = await caller.ask("POST", "/workflows/report?wait=result", 200, json=JUNE)
        fallen = await caller.ask("POST", "/workflows/fall?wait=result", 200, json={})
        asked = await caller.ask("POST", "/workflows/ask?wait=result", 202, json={})

        assert found["result"]["status"] == "completed"
        assert found["result"]["output"] == {"title": "JUNE"}
        assert fallen["result"]["status"] == "errored"
        assert "the stairs" in fallen["result"]["error"]["message"]
        assert asked["result"]["status"] == "waiting"
        assert asked["result"]["requests"][0]["prompt"] == "Go on?"


async def test_a_wait_for_a_result_ends_when_its_time_is_up_and_the_run_goes_on() -> None:
    async with yard() as scene:
        caller = scene.caller()
        late = await caller.ask("POST", "/workflows/nap?wait=result&timeout=0", 202, json={})
        record = await caller.ask("GET", f"/runs/{late['run_id']}?meta")

        assert late["result"]["status"] in ("queued", "active", "waiting")
        assert record["status"] in ("queued", "active", "waiting")
        for query in ("wait=end", "wait=result&timeout=31", "wait=result&timeout=-1"):
            await caller.ask("POST", f"/workflows/nap?{query}", 422, json={})


async def test_creation_is_idempotent_and_another_input_is_a_conflict() -> None:
    async with yard() as scene:
        caller = scene.caller()
        once = await caller.ask(
            "POST", "/workflows/report", 202, json={**JUNE, "dispatch_id": "june"}
        )
        again = await caller.ask(
            "POST", "/workflows/report?wait=result", 200, json={**JUNE, "dispatch_id": "june"}
        )
        other = {"input": {"month": "july"}, "dispatch_id": "june"}
        code = await caller.refused("POST", "/workflows/report", 409, json=other)

        assert (again["run_id"], again["duplicate"]) == (once["run_id"], True)
        assert code == "DISPATCH_CONFLICT"
        assert len((await caller.ask("GET", "/runs"))["runs"]) == 1


async def test_what_has_ended_stays_ended() -> None:
    async with yard() as scene:
        caller = scene.caller()
        started = await caller.ask("POST", "/workflows/report?wait=result", 200, json=JUNE)
        run = started["run_id"]
        before = await caller.ask("GET", f"/runs/{run}?meta")
        await caller.request("POST", f"/v1/runs/{run}/cancel", json={})
        again = await caller.ask("POST", "/workflows/report", 202, json={**JUNE})

        assert await caller.ask("GET", f"/runs/{run}?meta") == before
        assert before["status"] == "completed"
        assert again["run_id"] != run


async def test_meta_is_the_record_of_a_run() -> None:
    async with yard() as scene:
        caller = scene.caller()
        body = {**JUNE, "tags": {"customer": "42"}}
        started = await caller.ask("POST", "/workflows/report?wait=result", 200, json=body)
        record = await caller.ask("GET", f"/runs/{started['run_id']}?meta")

        assert {name: record[name] for name in ("workflow", "status", "input", "output")} == {
            "workflow": "report",
            "status": "completed",
            "input": {"month": "june"},
            "output": {"title": "JUNE"},
        }
        assert (record["tags"], record["retry_of"], record["error"]) == (
            {"customer": "42"},
            None,
            None,
        )
        assert record["created_at"] <= record["started_at"] <= record["ended_at"]


async def test_runs_are_listed_by_workflow_status_and_tag_page_by_page() -> None:
    async with yard() as scene:
        caller = scene.caller()
        done = [
            (await caller.ask("POST", "/workflows/report?wait=result", 200, json=body))["run_id"]
            for body in (JUNE, {**JUNE, "tags": {"customer": "42"}}, JUNE)
        ]
        failed = (await caller.ask("POST", "/workflows/fall?wait=result", 200, json={}))["run_id"]

        async def listed(**query: Any) -> list[str]:
            page = await caller.ask("GET", "/runs", params=query)
            return [run["run_id"] for run in page["runs"]]

        assert await listed() == [failed, *done[::-1]]
        assert await listed(workflow="report") == done[::-1]
        assert await listed(status="errored") == [failed]
        assert await listed(status="completed", tag="customer=42") == [done[1]]
        assert await listed(workflow="gone") == []
        first = await caller.ask("GET", "/runs", params={"limit": 3})
        rest = await listed(cursor=first["next_cursor"])
        assert [run["run_id"] for run in first["runs"]] + rest == [failed, *done[::-1]]
        assert (await caller.ask("GET", "/sessions"))["sessions"] == []
        for query in ({"status": "failed"}, {"tag": "customer"}, {"limit": 0}):
            await caller.ask("GET", "/runs", 422, params=query)


async def test_a_run_is_cancelled() -> None:
    async with yard() as scene:
        caller = scene.caller()
        run = (await caller.ask("POST", "/workflows/nap", 202, json={}))["run_id"]
        await scene.until(run, "session.waiting")
        await caller.ask("POST", f"/runs/{run}/cancel", 202, json={"reason": "no need"})
        result = await (await scene.app.get_run(run)).wait()

        assert result.status == "cancelled"
        assert (await caller.ask("GET", f"/runs/{run}?meta"))["status"] == "cancelled"


async def test_a_request_of_a_run_is_answered() -> None:
    async with yard() as scene:
        caller = scene.caller()
        asked = await caller.ask("POST", "/workflows/ask?wait=result", 202, json={})
        request = asked["result"]["requests"][0]["request_id"]
        await caller.ask("POST", f"/requests/{request}", 202, json={"option": "yes"})

        result = await (await scene.app.get_run(asked["run_id"])).wait()
        assert result.unwrap() == "yes"


async def test_a_run_that_errored_is_tried_again_as_a_new_run_once() -> None:
    async with yard() as scene:
        caller = scene.caller()
        run = (await caller.ask("POST", "/workflows/fall?wait=result", 200, json={}))["run_id"]
        body = {"dispatch_id": "again"}
        again = await caller.ask("POST", f"/runs/{run}/retry", 202, json=body)
        twice = await caller.ask("POST", f"/runs/{run}/retry", 202, json=body)
        record = await caller.ask("GET", f"/runs/{again['run_id']}?meta")
        done = (await caller.ask("POST", "/workflows/report?wait=result", 200, json=JUNE))["run_id"]

        assert again["run_id"] != run
        assert (twice["run_id"], twice["duplicate"]) == (again["run_id"], True)
        assert record["retry_of"] == run
        assert (await caller.ask("GET", f"/runs/{run}?meta"))["status"] == "errored"
        await caller.ask("POST", f"/runs/{done}/retry", 409, json={})


async def test_an_event_is_taken_by_the_body_once() -> None:
    async with yard() as scene:
        caller = scene.caller()
        run = (await caller.ask("POST", "/workflows/pay", 202, json={}))["run_id"]
        event = {"name": "paid", "payload": {"cents": 500}, "dispatch_id": "invoice-1"}
        for _ in range(2):
            await caller.ask("POST", f"/runs/{run}/events", 202, json=event)

        result = await (await scene.app.get_run(run)).wait()
        assert "500" in str(result.unwrap())
        await caller.ask("POST", f"/runs/{run}/events", 422, json={"payload": 1})


async def test_steps_are_listed_page_by_page() -> None:
    async with yard() as scene:
        caller = scene.caller()
        started = await caller.ask("POST", "/workflows/report?wait=result", 200, json=JUNE)
        page = await caller.ask("GET", f"/runs/{started['run_id']}/steps")
        [step] = page["steps"]
        behind = await caller.ask("GET", f"/runs/{started['run_id']}/steps?cursor={step['cursor']}")
        for made_up in ("x", "1-x", "-1"):
            refused = f"/runs/{started['run_id']}/steps?cursor={made_up}"
            assert await caller.refused("GET", refused, 400)

        assert "title" in step["name"]
        assert (step["status"], step["value"], step["error"]) == ("completed", "JUNE", None)
        assert (page["next_cursor"], behind) == (None, {"steps": [], "next_cursor": None})


async def test_pages_of_steps_hold_about_a_mebibyte_and_one_step_at_least() -> None:
    async with yard() as scene:
        caller = scene.caller()
        run = (await caller.ask("POST", "/workflows/pile?wait=result", 200, json={}))["run_id"]
        pages: list[list[tuple[str, int]]] = []
        more: str | None = ""
        while more is not None:
            page = await caller.ask("GET", f"/runs/{run}/steps{more}")
            pages.append([(step["name"], len(step["value"])) for step in page["steps"]])
            more = page["next_cursor"] and f"?cursor={page['next_cursor']}"
        some = await caller.ask("GET", f"/runs/{run}/steps?limit=2")

    handle = [step for page in pages for step in page]
    assert [len(page) for page in pages] == [2, 1, 2]
    assert [size for _, size in handle] == PILE
    assert len({name for name, _ in handle}) == len(PILE)
    assert some["next_cursor"] == some["steps"][-1]["cursor"]


async def test_who_waits_for_a_run_is_not_given_its_result_after_the_key_has_ended() -> None:
    async with yard() as scene:
        key_id, header = await scene.key("read", "send")
        start = scene.caller(header).post("/v1/workflows/pay?wait=result", json={})
        waiting = asyncio.create_task(start)
        await until_waiting(scene, 1)
        await revoke_key(scene.app.store, key_id, 1)
        [listed] = await scene.app.runs("pay")
        await (await scene.app.get_run(listed.run_id)).send_event("paid", "a secret")

        answer = await waiting

    assert answer.status_code == 401, answer.text


async def test_no_run_is_started_for_who_may_not_wait_for_it() -> None:
    async with yard(ServerSettings(max_streams_per_key=1)) as scene:
        _, header = await scene.key("read", "send")
        caller = scene.caller(header)
        first = asyncio.create_task(caller.post("/v1/workflows/pay?wait=result", json={}))
        await until_waiting(scene, 1)

        await caller.refused("POST", "/workflows/pay?wait=result", 429, json={})

        [listed] = await scene.app.runs("pay")
        await (await scene.app.get_run(listed.run_id)).send_event("paid", "now")
        assert (await first).status_code == 200


async def until_waiting(scene: Scene, count: int) -> None:
    """Wait until so many callers wait for a result."""
    while scene.api.state.backend.streams.total < count:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)


async def test_what_cannot_be_started_is_refused_and_leaves_nothing() -> None:
    async with yard() as scene:
        caller = scene.caller()
        unknown = await caller.refused("POST", "/workflows/gone", 404, json={})
        wrong = await caller.refused("POST", "/workflows/report", 422, json={"input": {"m": 1}})
        extra = await caller.refused("POST", "/workflows/nap", 422, json={"input": 1})
        await caller.ask("POST", "/workflows/nap", 422, json={"delay": -1})
        await caller.ask("POST", "/workflows/nap", 422, json={"message": "hello"})

        assert unknown == "UNKNOWN_WORKFLOW"
        assert wrong == extra == "INVALID_INPUT"
        assert (await caller.ask("GET", "/runs"))["runs"] == []


async def test_a_run_is_not_there_for_another_tenant_and_says_nothing_of_its_own() -> None:
    async with yard() as scene:
        ours, theirs = await scene.keyed(tenant="ours"), await scene.keyed(tenant="theirs")
        run = (await ours.ask("POST", "/workflows/nap", 202, json={}))["run_id"]
        missing = run[:-1] + ("0" if run[-1] != "0" else "1")

        for method, path in (
            ("GET", ""),
            ("GET", "?meta"),
            ("GET", "/steps"),
            ("POST", "/cancel"),
            ("POST", "/retry"),
        ):
            answers = [
                await theirs.ask(method, f"/runs/{name}{path}", 404) for name in (run, missing)
            ]
            texts = [
                str(answer).replace(name, "")
                for answer, name in zip(answers, (run, missing), strict=True)
            ]
            assert texts[0] == texts[1]
            assert "UNKNOWN_RUN" in texts[0]
        assert (await theirs.ask("GET", "/runs"))["runs"] == []
        assert len((await ours.ask("GET", "/runs"))["runs"]) == 1
        assert "ours" not in str(await ours.ask("GET", f"/runs/{run}?meta"))


@pytest.mark.parametrize(
    ("scope", "method", "path"),
    [
        ("read", "POST", "/workflows/nap"),
        ("send", "GET", "/runs"),
        ("send", "GET", "/runs/run_1"),
        ("send", "GET", "/runs/run_1?meta"),
        ("send", "POST", "/workflows/nap?wait=result"),
        ("read", "POST", "/runs/run_1/cancel"),
        ("read", "POST", "/runs/run_1/retry"),
        ("read", "POST", "/runs/run_1/events"),
        ("send", "GET", "/runs/run_1/steps"),
    ],
)
async def test_each_route_needs_its_scope(scope: str, method: str, path: str) -> None:
    async with yard() as scene:
        caller = await scene.keyed(scope)
        given: Json = {"json": {}} if method == "POST" else {}
        assert await caller.refused(method, path, 403, **given) == "MISSING_SCOPE"
        assert await scene.app.runs() == []
