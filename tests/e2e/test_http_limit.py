"""How much one caller may ask for, and what browsers and names may not be used for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http_scene import HERE, Caller, scene
from starlette.requests import Request

from outlast.server import Principal, ServerSettings
from outlast.server.principal import LOCAL

ELSEWHERE = "203.0.113.9"
KEYS_ONLY = ServerSettings(require_key=True)


async def listed(caller: Caller) -> int:
    return (await caller.get("/v1/sessions")).status_code


# How much


async def test_a_key_is_good_for_so_many_requests_and_is_told_when_to_come_back() -> None:
    async with scene(ServerSettings(rate=0.01, burst=3)) as bank:
        first, second = await bank.keyed("read"), await bank.keyed("read")

        answers = [await first.get("/v1/sessions") for _ in range(5)]

        assert [each.status_code for each in answers] == [200, 200, 200, 429, 429]
        assert answers[-1].json()["error"]["code"] == "RATE_LIMITED"
        assert 60 <= int(answers[-1].headers["retry-after"]) <= 100
        assert await listed(second) == 200, "another key is not held back"
        assert [await listed(bank.caller()) for _ in range(5)] == [200] * 5


async def test_a_key_has_so_many_streams_open_at_once() -> None:
    async with scene(ServerSettings(max_streams_per_key=2)) as bank:
        backend, reader = bank.api.state.backend, Principal("a", "b", key_id="key_1")
        async with backend.hold(reader), backend.hold(reader):
            with pytest.raises(Exception, match="2 streams") as refused:
                async with backend.hold(reader):
                    pass
            raised: Any = refused.value
            assert (raised.status_code, raised.code) == (429, "TOO_MANY_STREAMS")
            async with backend.hold(Principal("a", "b", key_id="key_2")):
                pass
            assert backend.streams.total == 2
        async with backend.hold(reader):
            pass
        async with backend.hold(LOCAL), backend.hold(LOCAL), backend.hold(LOCAL):
            assert backend.streams.total == 3, "who is local is counted, and not limited"
        assert backend.streams.total == 0


async def test_waiting_for_a_result_counts_as_a_stream() -> None:
    async with scene(ServerSettings(max_streams_per_key=1)) as bank:
        reader = await bank.keyed("read", "send")
        body = {"agent": "teller", "message": "hang"}
        session = (await reader.ask("POST", "/sessions", 202, json=body))["session_id"]
        path = f"/sessions/{session}/result"
        await bank.until(session, "tool.started")

        answers = await asyncio.gather(*(reader.get(f"/v1{path}?wait=1") for _ in range(2)))
        now = await reader.ask("GET", path, 202)

        refused, waited = sorted(answers, key=lambda answer: -answer.status_code)
        assert refused.json()["error"]["code"] == "TOO_MANY_STREAMS"
        assert waited.json()["status"] == now["status"] == "running"


# Browsers


async def test_pages_of_other_origins_may_call_only_where_they_are_named() -> None:
    asks = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    async with scene(KEYS_ONLY) as bank:
        closed = await bank.caller(asks).options("/v1/sessions")
        assert closed.status_code == 401
        assert not [name for name in closed.headers if name.startswith("access-control")]
    async with scene(
        ServerSettings(require_key=True, cors_origins=("https://app.example",))
    ) as bank:
        asked = await bank.caller(asks).options("/v1/sessions")
        assert asked.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in asked.headers
        paths = bank.app.asgi().openapi()["paths"].values()
        allowed = asked.headers["access-control-allow-methods"].lower().split(", ")
        assert {method for path in paths for method in path} <= set(allowed)
        stranger = await bank.caller({**asks, "Origin": "https://evil.example"}).options(
            "/v1/sessions"
        )
        assert "access-control-allow-origin" not in stranger.headers
        _, key = await bank.key("read")
        read = await bank.caller({**key, "Origin": "https://app.example"}).get("/v1/sessions")
        assert read.headers["access-control-allow-origin"] == "https://app.example"
        assert "Stream-Next-Offset" in read.headers["access-control-expose-headers"]


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/nothing", "/healthz", "/v1/openapi.json"])
async def test_every_answer_tells_browsers_to_be_careful(path: str) -> None:
    async with scene() as bank:
        headers = (await bank.caller().get(path)).headers

        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers


# Names and pages


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example"]
)
async def test_a_name_that_leads_here_by_a_trick_does_not_open_what_is_local(host: str) -> None:
    async with scene() as bank, bank.caller({"Host": host}) as rebound:
        answer = await rebound.get("/v1/sessions")

        assert answer.status_code == 421
        assert answer.json()["error"]["code"] == "HOST_NOT_ALLOWED"


async def test_a_page_from_elsewhere_does_not_reach_what_is_local() -> None:
    async with scene() as bank:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:9999", ""):
            assert await listed(bank.caller({"Origin": origin})) == 403
        assert await listed(bank.caller({"Origin": HERE})) == 200


async def test_the_server_answers_only_to_names_that_it_was_given() -> None:
    settings = ServerSettings(allowed_hosts=("api.example.com", "*.shop.example"))
    async with scene(settings) as bank:
        _, key = await bank.key("read")
        for host in (
            "api.example.com",
            "API.example.com:443",
            "a.shop.example",
            "a.b.shop.example.",
        ):
            assert await listed(bank.caller({**key, "Host": host})) == 200
        for host in (
            "example.com",
            "shop.example",
            "evilshop.example",
            "a@api.example.com",
            "",
            "::",
        ):
            assert await listed(bank.caller({**key, "Host": host})) == 421
        assert (await bank.caller({"Host": "10.1.2.3"}).get("/healthz")).status_code == 200


async def test_any_name_being_allowed_does_not_open_what_is_local() -> None:
    async with scene(ServerSettings(allowed_hosts=("*",))) as bank:
        _, key = await bank.key("read")
        assert await listed(bank.caller({"Host": "evil.example"})) == 421
        assert await listed(bank.caller({"Host": "evil.example", **key})) == 200


async def test_who_is_known_by_a_cookie_is_not_made_to_act_by_another_sites_page() -> None:
    settings = ServerSettings(authenticate=owner, cors_origins=("https://app.example",))
    async with scene(settings) as bank:
        path = "/v1/sessions/ses_x/end"
        for origin, expected in {
            "https://evil.example": 403,
            "null": 403,
            "http://127.0.0.1:8000": 404,
            "https://127.0.0.1:8000": 404,
            "https://app.example": 404,
        }.items():
            caller = bank.caller({"Cookie": "who=ada", "Origin": origin}, peer=ELSEWHERE)
            assert (await caller.post(path)).status_code == expected, origin
            assert await listed(caller) == 200, "what a page may read is for CORS to say"
        assert (await bank.caller({"Cookie": "who=ada"}).post(path)).status_code == 404


def owner(request: Request) -> Principal | None:
    is_ada = request.cookies.get("who") == "ada"
    return Principal("acme", "ada", frozenset({"admin"})) if is_ada else None
