"""What the routes do that are about more than one session, or about none."""

from __future__ import annotations

import pytest
from http_scene import OUTSIDE, scene
from known import known, known_as

from outlast.core.breaker import Breaker, Provider
from outlast.core.record import Failure, SessionStarted
from outlast.log.breaker import document_of


async def test_an_agent_has_one_session_for_a_key_that_is_read_where_it_is_prompted() -> None:
    async with scene() as bank, bank.caller() as caller:
        path = "/agents/teller/customer/17"
        assert await caller.refused("GET", path, 404) == "UNKNOWN_SESSION"

        body = {"message": "hello", "dispatch_id": "a"}
        first = await caller.ask("POST", path, 202, json=body)
        again = await caller.ask("POST", path, 202, json=body)
        second = await caller.ask("POST", path, 202, json={"message": "again"})
        await caller.result(first["session_id"])

        assert first["stream_url"] == f"{OUTSIDE}/v1{path}"
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert first["delivery_id"] == again["delivery_id"]
        assert first["session_id"] == second["session_id"]
        assert await caller.ask("GET", path) == await caller.events(first["session_id"])
        head = await caller.head(f"/v1{path}")
        assert head.status_code == 200
        assert head.headers["stream-next-offset"]
        assert await caller.refused("POST", "/agents/nobody/k", 404, json=body) == "UNKNOWN_AGENT"


async def test_lanes_and_workers_are_listed() -> None:
    async with scene() as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]
        await caller.start("refund")
        other = {"message": "hello", "lane": "other"}
        await caller.ask("POST", f"/sessions/{session}/deliveries", 202, json=other)
        await caller.result(session)

        every = (await caller.ask("GET", "/lanes"))["lanes"]
        page = await caller.ask("GET", "/lanes?limit=2")
        rest = await caller.ask("GET", f"/lanes?limit=2&cursor={page['next_cursor']}")
        waiting = (await caller.ask("GET", "/lanes?status=waiting&agent=teller"))["lanes"]
        [worker] = (await caller.ask("GET", "/workers"))["workers"]

        assert len(every) == 3
        assert [*page["lanes"], *rest["lanes"]] == every
        assert [lane["status"] for lane in waiting] == ["waiting"]
        assert worker["agents"] == ["teller", "hold"]
        assert await caller.refused("GET", "/lanes?cursor=!!!", 400) == "INVALID_CURSOR"


AWAY = Breaker(
    provider=Provider("teller", "openai:gpt-5.2", "api.example.com"),
    since=1_700_000_000_000,
    error=Failure("CREDENTIALS_REJECTED", "wrong key"),
    failures=4,
    is_open=True,
    blocked=True,
    next_at=4_000_000_000_000,
)


async def test_providers_that_do_not_answer_are_listed_counted_and_tried_at_once() -> None:
    async with scene() as bank, bank.caller() as caller:
        assert (await caller.ask("GET", "/providers")) == {"providers": []}
        await bank.app.store.document.put(document_of(AWAY, 1), expected=None)

        [told] = (await caller.ask("GET", "/providers"))["providers"]
        assert told == {
            "agent": "teller",
            "model": "openai:gpt-5.2",
            "address": "api.example.com",
            "state": "open",
            "since": "2023-11-14T22:13:20.000Z",
            "error": {"code": "CREDENTIALS_REJECTED", "message": "wrong key", "hint": ""},
            "failures": 4,
            "blocked": True,
            "next_try_at": "2096-10-02T07:06:40.000Z",
            "waiting": 0,
            "deployment": "",
        }
        metrics = (await caller.get("/metrics")).text
        labels = '{agent="teller",model="openai:gpt-5.2",state="open"}'
        assert f"outlast_provider_waiting{labels} 0" in metrics
        assert (await caller.ask("GET", "/providers?agent=other")) == {"providers": []}

        assert await caller.ask("POST", "/providers/try", 202) == {"tried": 1}
        [tried] = (await caller.ask("GET", "/providers"))["providers"]
        assert tried["next_try_at"] < told["next_try_at"]
        none = await caller.ask("POST", "/providers/try", 202, json={"agent": "other"})
        assert none == {"tried": 0}
        unknown = {"model": "x"}
        assert await caller.refused("POST", "/providers/try", 422, json=unknown) == "INVALID_INPUT"


async def test_queues_are_made_changed_listed_counted_and_removed() -> None:
    async with scene() as bank, bank.caller() as caller:
        assert await caller.refused("GET", "/queues/reports", 404) == "UNKNOWN_QUEUE"
        assert await caller.refused("DELETE", "/queues/reports", 404) == "UNKNOWN_QUEUE"
        start = {"agent": "teller", "message": "hi", "queue": {"name": "reports", "priority": 9}}
        assert await caller.refused("POST", "/sessions", 404, json=start) == "UNKNOWN_QUEUE"
        await caller.ask("POST", "/queues/reports", json={"concurrency": 3})
        told = await caller.ask("POST", "/queues/reports", json={"delay": 3600})
        assert (told["settings"]["concurrency"], told["settings"]["delay"]) == (3, 3600)
        assert await caller.ask("GET", "/queues") == {"queues": [told]}
        for wrong in ({"concurrency": -1}, {"priority": 601}, {"pace": 1}, {"per": 0}):
            code = await caller.refused("POST", "/queues/reports", 422, json=wrong)
            assert code == "INVALID_INPUT"
        assert await caller.refused("POST", "/queues/no:name", 422, json={}) == "INVALID_NAME"
        metrics = (await caller.get("/metrics")).text
        for name in ("running", "waiting", "oldest_seconds"):
            assert f'outlast_queue_{name}{{queue="reports"}} 0' in metrics

        started = await caller.ask("POST", "/sessions", 202, json=start)
        entry = (await bank.app.store.log.read(started["session_id"], 0)).entries[0]
        place = known(known_as(SessionStarted, entry.record).place)
        assert (place.queue, place.ahead) == ("reports", 9000)
        await caller.ask("DELETE", "/queues/reports", 204)
        assert await caller.ask("GET", "/queues") == {"queues": []}


async def test_a_callback_wakes_the_tool_that_waits_for_it_once() -> None:
    async with scene() as bank, bank.caller() as caller:
        session, path = await bank.hooked(caller)
        assert (await caller.ask("GET", f"/sessions/{session}"))["requests"] == []

        for method in ("GET", "HEAD", "PUT", "OPTIONS"):
            looked = await caller.request(method, f"/v1{path}")
            unknown = await caller.request(method, "/v1/callbacks/unknown")
            assert (looked.status_code, looked.content) == (unknown.status_code, unknown.content)
            assert looked.status_code == 405

        outsider = bank.caller(peer="203.0.113.9", url=OUTSIDE)
        first = await outsider.post(f"/v1{path}", json={"paid": True})
        again = await outsider.post(f"/v1{path}", json={"paid": True})
        other = await outsider.post(f"/v1{path}", json={"paid": False})
        never = await outsider.post("/v1/callbacks/unknown", json={"paid": False})

        assert first.status_code == again.status_code == 202
        assert first.json() == {"accepted": True}
        assert (other.status_code, other.json()) == (never.status_code, never.json())
        assert never.json()["error"]["code"] == "UNKNOWN_CALLBACK"
        assert (await caller.result(session))["output"] == "That is done."


async def test_numbers_are_told_as_prometheus_reads_them() -> None:
    async with scene() as bank, bank.caller() as caller:
        await caller.start("refund")

        told = await caller.get("/metrics")

        assert told.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert 'outlast_lanes{status="waiting",wait="request"} 1' in told.text
        assert 'outlast_workers{state="working"} 1' in told.text


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v1/healthz", "/v1/readyz"])
async def test_who_watches_needs_no_key(path: str) -> None:
    async with scene() as bank, bank.caller(peer="203.0.113.9", url="http://10.0.0.1") as probe:
        assert (await probe.get(path)).json() == {"status": "ok"}


async def test_what_is_not_there_is_said_in_the_same_shape() -> None:
    async with scene() as bank, bank.caller() as caller:
        assert await caller.refused("GET", "/nothing", 404) == "UNKNOWN_ROUTE"
        assert await caller.refused("PUT", "/sessions", 405) == "METHOD_NOT_ALLOWED"
        wrong = await caller.request("PUT", "/v1/sessions")
        assert wrong.headers["allow"] == "GET, POST"
        slash = await caller.get("/v1/sessions/")
        assert slash.status_code == 404
