"""Two tenants: whatever one of them tries, it reaches nothing of the other's.

What is tried is made of the server's own description of its routes. A route that is new is tried
as well; one with a name in its address that nobody has taught this test fails it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from http_scene import Caller, Json, Scene, scene

from outlast.server import ServerSettings
from outlast.server.asgi import create
from outlast.server.route.fleet import cursor_of

SECRET = "the-secret-of-acme"
METHODS = ("get", "head", "post", "put", "patch", "delete")
ANY_RATE = ServerSettings(rate=0, long_poll=0.01, heartbeat=0.01)

OF_NOBODY = {"/v1/healthz", "/v1/readyz"}
"""Routes that know no tenant and have nothing to tell."""

OWNED = {"session_id", "run_id", "request_id"}
"""Names in an address that lead to something that belongs to a tenant."""


class Attempt(NamedTuple):
    method: str
    url: str
    body: Any = None
    headers: Json = {}  # noqa: RUF012 - never changed
    is_aimed: bool = False
    """Whether the address itself names what is another's."""


class Victim(NamedTuple):
    """All that there is to know of a tenant."""

    names: dict[str, str]
    """What the routes call it, and what it is called."""
    marks: frozenset[str]
    """What must never be seen by another."""


async def settle(bank: Scene, caller: Caller) -> Victim:
    """Give a tenant one of everything."""
    started = await caller.start(f"refund {SECRET}", dispatch_id="d1", continuation_token="t1")
    session = started["session_id"]
    prompted = await caller.ask(
        "POST", "/agents/teller/k1", 202, json={"message": f"hello {SECRET}"}
    )
    await caller.result(prompted["session_id"])
    hooked, path = await bank.hooked(caller)
    asked = (await caller.ask("GET", f"/requests?session_id={session}"))["requests"][0]
    lane = (await bank.app.workers.lanes(session_id=session))[0]
    begun = await caller.ask("POST", "/workflows/hold", 202, json={"input": SECRET})
    run = begun["run_id"]
    await bank.until(run, "session.waiting")
    names = {
        "session_id": session,
        "run_id": run,
        "request_id": asked["request_id"],
        "delivery_id": started["delivery_id"],
        "continuation_token": "t1",
        "dispatch_id": "d1",
        "name": "teller",
        "key": "k1",
        "cursor": cursor_of((lane.session_id, lane.lane)),
        "agent": "teller",
        "token": path.rpartition("/")[2],
    }
    marks = {
        SECRET,
        session,
        prompted["session_id"],
        hooked,
        run,
        names["request_id"],
        names["token"],
        started["delivery_id"],
        prompted["delivery_id"],
    }
    return Victim(names, frozenset(marks))


def operations(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def attempts(
    document: Json, victim: Victim, own: str = "", own_ended: str = ""
) -> Iterator[Attempt]:
    """Give all that the other tenant tries, with the victim's names wherever one fits.

    It reads its own session that has ended: a stream of the other would have no end.
    """
    for method, path, operation in operations(document):
        if path in OF_NOBODY:
            continue
        wanted = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"]
        queries = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
        for name in wanted:
            assert name in victim.names, f"{method} {path}: what is {name}? teach this test"
        address = path.format(**{name: victim.names[name] for name in wanted})
        bodies = [*bodies_of(document, operation, victim)] or [None]
        for body in bodies:
            for query in ("", *queries_of(path, queries, victim)):
                for headers in ({}, {"Accept": "text/event-stream"}):
                    aimed = bool(OWNED & set(wanted))
                    yield Attempt(method, address + query, body, headers, aimed)
                    if "session_id" in wanted and own:
                        mine = own_ended if method in ("get", "head") else own
                        inside = path.format(**{**victim.names, "session_id": mine})
                        yield Attempt(method, inside + query, body, headers)


def queries_of(path: str, names: list[str], victim: Victim) -> Iterator[str]:
    if path.endswith(
        ("/history", "/milestones", "/steps")
    ):  # whose cursors are numbers, and no secrets
        names = [name for name in names if name != "cursor"]
    for name in names:
        values = [victim.names[name]] if name in victim.names else []
        values += [victim.names["session_id"], victim.names["request_id"]] * (name == "cursor")
        yield from (f"?{name}={value}" for value in values)
    if "follow" in names:
        yield "?follow=false"
    if "live" in names:
        yield "?offset=-1&live=long-poll"
        yield "?offset=-1&live=sse"


def bodies_of(document: Json, operation: Json, victim: Victim) -> Iterator[Any]:
    """Give the documented examples of a body, and the same with the victim's names in it."""
    content = operation.get("requestBody", {}).get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    for part in [schema, *schema.get("anyOf", ())]:
        name = part.get("$ref", "").rpartition("/")[2]
        if not name:
            continue
        found = document["components"]["schemas"][name]
        for example in found.get("examples", [{}]):
            yield example
            yield {**example, "dispatch_id": "d1"}
            yield json.loads(json.dumps(example), object_hook=lambda o: stolen(o, victim))


def stolen(value: Json, victim: Victim) -> Json:
    return {key: victim.names.get(key, each) for key, each in value.items()}


@asynccontextmanager
async def two_tenants(store: str = "memory://") -> AsyncIterator[tuple[Scene, Caller, Caller]]:
    async with (
        scene(ANY_RATE, store=store) as bank,
        await bank.keyed(tenant="acme") as acme,
        await bank.keyed(tenant="other") as other,
    ):
        yield bank, acme, other


async def everything_of(caller: Caller, victim: Victim) -> Json:
    """Return all that a tenant can see of itself."""
    sessions = (await caller.ask("GET", "/sessions"))["sessions"]
    ids = [session["session_id"] for session in sessions]
    return {
        "sessions": [await caller.ask("GET", f"/sessions/{each}") for each in ids],
        "events": [await caller.events(each) for each in ids],
        "requests": await caller.ask("GET", "/requests"),
        "lanes": await caller.ask("GET", "/lanes"),
        "run": await caller.ask("GET", f"/runs/{victim.names['run_id']}?meta"),
        "steps": await caller.ask("GET", f"/runs/{victim.names['run_id']}/steps"),
        "told": await caller.ask("GET", f"/runs/{victim.names['run_id']}?offset=-1"),
    }


def leaks(attempt: Attempt, response: httpx.Response, victim: Victim) -> list[str]:
    """Return what an answer gives away that was not in the request."""
    sent = attempt.url + json.dumps(attempt.body)
    told = response.text + str(response.headers)
    return [mark for mark in victim.marks if mark in told and mark not in sent]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_no_route_of_one_tenant_reaches_the_data_of_another(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path}/outlast.db"
    if kind == "postgres":
        store = request.getfixturevalue("postgres_url")
    async with two_tenants(store) as (bank, acme, other):
        victim = await settle(bank, acme)
        own = (await other.start("hello"))["session_id"]
        ended = (await other.start("hello", mode="task"))["session_id"]
        before = await everything_of(acme, victim)
        document = await acme.ask("GET", "/openapi.json")
        every = attempts(document, victim, own, ended)
        tried = [attempt for attempt in every if is_no_callback(attempt)]

        for attempt in tried:
            response = await other.request(
                attempt.method, attempt.url, json=attempt.body, headers=attempt.headers
            )

            assert response.status_code < 500, (attempt, response.text)
            assert not leaks(attempt, response, victim), (attempt, response.text)
            if attempt.is_aimed:
                # 400 and 422 are about the shape, and said before anything is looked up.
                assert response.status_code in (400, 404, 422), (attempt, response.text)

        assert len(tried) > 100
        assert await everything_of(acme, victim) == before


def is_no_callback(attempt: Attempt) -> bool:
    """Who knows the token of a callback may call it: that is what it is for."""
    return not attempt.url.startswith("/v1/callbacks/")


async def test_who_owns_it_gets_through_with_the_same_requests() -> None:
    """Else the test before this one would show nothing."""
    async with two_tenants() as (bank, acme, _):
        victim = await settle(bank, acme)
        document = await acme.ask("GET", "/openapi.json")
        tried = attempts(document, victim)

        seen = set()
        for attempt in tried:
            if attempt.method != "get" or not attempt.is_aimed or is_endless(attempt):
                continue
            response = await acme.get(attempt.url, headers=attempt.headers)
            assert response.status_code in (200, 202), (attempt, response.text)
            seen.add(attempt.url.partition("?")[0])
            marks = (*victim.marks, "offset", '"milestones":[]')
            assert any(mark in response.text for mark in marks)

        assert len(seen) >= 5


def is_endless(attempt: Attempt) -> bool:
    """Whether a stream is followed, of a session that lives."""
    is_page = "/stream" not in attempt.url or "follow=false" in attempt.url
    return "live=" in attempt.url or not (is_page or "/streams/" in attempt.url)


async def test_another_tenants_session_is_told_as_one_that_never_was() -> None:
    async with two_tenants() as (bank, acme, other):
        victim = await settle(bank, acme)
        session = victim.names["session_id"]

        theirs = await other.get(f"/v1/sessions/{session}")
        nobodys = await other.get("/v1/sessions/ses_never")

        assert theirs.status_code == nobodys.status_code == 404
        assert theirs.text.replace(session, "ses_never") == nobodys.text
        assert sorted(theirs.headers) == sorted(nobodys.headers)


async def test_tokens_keys_and_dispatches_are_each_tenants_own() -> None:
    async with two_tenants() as (bank, acme, other):
        await settle(bank, acme)
        body = {"continuation_token": "t1", "message": "hello"}

        code = await other.refused("POST", "/deliver", 409, json=body)
        begun = await other.start("hello", dispatch_id="d1", continuation_token="t1")
        prompted = await other.ask("POST", "/agents/teller/k1", 202, json={"message": "a"})

        assert code == "NO_ACTIVE_SESSION"
        assert not begun["duplicate"]
        sessions = (await acme.ask("GET", "/sessions"))["sessions"]
        theirs = {session["session_id"] for session in sessions}
        assert theirs.isdisjoint({begun["session_id"], prompted["session_id"]})


async def test_another_tenants_request_is_not_answered_through_a_session_of_ones_own() -> None:
    async with two_tenants() as (bank, acme, other):
        victim = await settle(bank, acme)
        own = (await other.start("refund"))["session_id"]
        answer = {"request_id": victim.names["request_id"], "option": "approve"}

        body = {"answers": [answer]}
        path = f"/sessions/{own}/deliveries"

        assert await other.refused("POST", path, 404, json=body) == "UNKNOWN_REQUEST"


async def test_no_name_of_a_tenants_things_opens_a_callback() -> None:
    async with two_tenants() as (bank, acme, other):
        victim = await settle(bank, acme)
        before = await everything_of(acme, victim)

        for name, value in victim.names.items():
            if name != "token":
                code = await other.refused("POST", f"/callbacks/{value}", 410, json={})
                assert code == "UNKNOWN_CALLBACK"
        _, own_path = await bank.hooked(other)
        await other.ask("POST", own_path, 202, json={})

        assert await everything_of(acme, victim) == before


async def test_a_route_that_nobody_has_taught_this_test_is_noticed() -> None:
    async with two_tenants() as (bank, acme, _):
        victim = await settle(bank, acme)
        document = await acme.ask("GET", "/openapi.json")
        parameter = {"name": "blob_id", "in": "path", "required": True}
        document["paths"]["/v1/blobs/{blob_id}"] = {"get": {"parameters": [parameter]}}

        with pytest.raises(AssertionError, match="what is blob_id"):
            [*attempts(document, victim)]


async def test_every_route_that_is_served_is_in_the_description() -> None:
    """Only those may be left out that are there a second time under another address."""
    async with scene() as bank:
        described = {path for _, path, _ in operations(create(bank.app).openapi())}
        served = {path for path in walk(create(bank.app).routes) if path != "/v1/openapi.json"}

        assert {path for path in served if path not in described} == {
            "/healthz",
            "/readyz",
            "/metrics",
        }


def walk(routes: Any, prefix: str = "") -> Iterator[str]:
    for route in routes:
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from walk(inner.routes, prefix + route.include_context.prefix)
        else:
            yield (prefix + route.path).replace(":path}", "}")
