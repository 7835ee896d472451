"""The database is away: callers are told to come back, soon, and nothing of why."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from http_scene import OF_OTHERS, Caller, Json, on_a_socket, scene
from postgres_proxy import Wire, through

from outlast.clock import Clock
from outlast.errors import StoreCorrupt, StoreFull, StoreUnavailable
from outlast.server import ServerSettings
from outlast.store import Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.wrapped_store import WrappedStore

ELSEWHERE = {"/v1/healthz", *(path for _, path in OF_OTHERS)}
"""Routes that need no store, or have tests of their own."""
SECRET = "password=hunter2"


class Away(WrappedStore):
    """A store that fails in some way, from when it is told to."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.fails: Exception | None = None

    @property
    def inner(self) -> Store:
        if self.fails:
            raise self.fails
        return self._store


class Silent(WrappedStore):
    """A store that answers nothing, from when it is told to."""

    is_silent = False


def falls_silent(name: str) -> Any:
    async def method(self: Silent, *args: Any, **given: Any) -> Any:
        if self.is_silent:
            await asyncio.Event().wait()
        return await getattr(WrappedStore, name)(self, *args, **given)

    return method


for each, _ in inspect.getmembers(WrappedStore, inspect.iscoroutinefunction):
    if each not in ("migrate", "close"):
        setattr(Silent, each, falls_silent(each))


def requests(document: Json, session: str) -> Iterator[tuple[str, str, Any]]:
    """Give a request for every operation that needs the store."""
    names = {
        "session_id": session,
        "run_id": "run_x",
        "request_id": "req_x",
        "token": "t",
        "name": "teller",
        "key": "k",
    }
    for path, item in document["paths"].items():
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            parts = [schema, *schema.get("anyOf", ())]
            refs = [part["$ref"].rpartition("/")[2] for part in parts if "$ref" in part]
            shown = document["components"]["schemas"][refs[0]]["examples"][0] if refs else None
            body = {**shown, "agent": "teller"} if shown and "agent" in shown else shown
            if path not in ELSEWHERE:
                if path.startswith("/v1/workflows/"):
                    yield method, path.format(name="hold"), {"input": "hello"}
                else:
                    yield method, path.format(**names), body


@pytest.mark.parametrize(
    ("error", "status"),
    [(StoreUnavailable(SECRET), 503), (StoreFull(SECRET), 503), (StoreCorrupt(SECRET), 500)],
)
async def test_every_route_says_that_the_store_is_away_and_not_why(
    error: Exception, status: int
) -> None:
    store = Away(MemoryStore(Clock()))
    async with scene(store=store, worker=None) as bank, bank.caller() as caller:
        body = {"agent": "teller", "message": "hello"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        tried = [*requests(bank.api.openapi(), session)]
        store.fails = error

        for method, path, sent in tried:
            response = await caller.request(method, path, json=sent)

            expected = 503 if path == "/v1/readyz" else status
            assert response.status_code == expected, (method, path, response.text)
            assert "hunter2" not in response.text
            assert ("retry-after" in response.headers) == (expected == 503)

        assert len(tried) > 20
        assert (await caller.get("/healthz")).status_code == 200
        store.fails = None
        await caller.ask("GET", f"/sessions/{session}")


async def test_keys_cannot_be_checked_while_the_store_is_away() -> None:
    store = Away(MemoryStore(Clock()))
    async with scene(store=store, worker=None) as bank, await bank.keyed("read") as caller:
        store.fails = StoreUnavailable(SECRET)

        assert await caller.refused("GET", "/sessions", 503) == "STORE_UNAVAILABLE"
        store.fails = None


async def test_a_store_that_says_nothing_does_not_keep_callers_waiting() -> None:
    store = Silent(MemoryStore(Clock()))
    settings = ServerSettings(timeout=0.02)
    async with scene(settings, store=store, worker=None) as bank, bank.caller() as caller:
        body = {"agent": "teller", "message": "hello"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        tried = [*requests(bank.api.openapi(), session)]
        keyed = await bank.keyed("read")
        store.is_silent = True

        for method, path, sent in tried:
            if path != "/v1/readyz":  # its own timeout is longer
                response = await caller.request(method, path, json=sent)
                assert response.status_code == 503, (method, path, response.text)
                assert response.headers["retry-after"] == "1"
        assert await keyed.refused("GET", "/sessions", 503) == "STORE_UNAVAILABLE"

        store.is_silent = False
        await caller.ask("GET", f"/sessions/{session}")


async def test_a_request_that_was_lost_with_the_database_is_safe_to_repeat(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    settings = ServerSettings(port=0, timeout=3.0)
    async with (
        wire.opened() as port,
        scene(store=through(postgres_url, port)) as bank,
        on_a_socket(bank.app, settings) as (_, http),
        Caller(base_url=f"http://127.0.0.1:{http}", timeout=60) as caller,
    ):
        body = {"agent": "teller", "message": "hello", "dispatch_id": "one"}
        wire.lets_nobody_through = True
        wire.cut()

        lost = await caller.post("/v1/sessions", json=body)
        ready = await caller.get("/readyz")
        alive = await caller.get("/healthz")

        wire.lets_nobody_through = False
        first = await again(caller, body)
        second = await again(caller, body)
        assert (lost.status_code, ready.status_code) == (503, 503)
        assert lost.headers["retry-after"]
        assert alive.status_code == 200
        assert first["session_id"] == second["session_id"]
        assert (await caller.result(first["session_id"]))["output"] == "You said: hello"


async def again(caller: Caller, body: Json) -> Json:
    """Repeat a request for as long as it is told to come back."""
    response: httpx.Response = await caller.post("/v1/sessions", json=body)
    while response.status_code == 503:
        response = await caller.post("/v1/sessions", json=body)
    assert response.status_code == 202, response.text
    found: Json = response.json()
    return found
