"""Who is let in, and how far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from http_scene import OF_OTHERS, Caller, Json, on_a_socket, scene
from starlette.requests import Request

from outlast.server import Principal, ServerSettings
from outlast.server.key import list_keys, revoke_key
from outlast.server.principal import SCOPES

ELSEWHERE = "203.0.113.9"
KEYS_ONLY = ServerSettings(require_key=True)


async def listed(caller: Caller) -> int:
    return (await caller.get("/v1/sessions")).status_code


async def test_this_machine_gets_in_without_a_key_and_nobody_else() -> None:
    async with scene() as bank:
        for peer in ("127.0.0.1", "127.8.0.1", "::1"):
            assert await listed(bank.caller(peer=peer)) == 200
        for peer in (
            ELSEWHERE,
            "10.0.0.7",
            "testclient",
            "localhost.evil.example",
            "::ffff:10.0.0.7",
        ):
            assert await listed(bank.caller(peer=peer)) == 401


async def test_an_address_that_others_reach_asks_this_machine_for_a_key_too() -> None:
    async with scene() as bank:
        assert await listed(bank.caller(url="http://192.168.0.5:8000")) == 401


FORWARDED = """
X-Forwarded-For X-Forwarded-Host X-Forwarded-Proto X-Forwarded-Port X-Forwarded-Server X-Forwarded
X-Original-Forwarded-For X-Original-Host X-Real-IP Forwarded Forwarded-For Via CDN-Loop
CF-Connecting-IP CF-Connecting-IPv6 CF-Ray True-Client-IP X-Client-IP X-Cluster-Client-IP Client-IP
WL-Proxy-Client-IP Fly-Client-IP Fastly-Client-IP X-Envoy-External-Address X-Azure-ClientIP
X-Azure-SocketIP X-AppEngine-User-IP X-ProxyUser-IP X-Amzn-Trace-Id X-Amz-Cf-Id
X-Cloud-Trace-Context X-Remote-IP X-Remote-Addr X-Vercel-Id X-Varnish X-ARR-LOG-ID
X-Scheme X-Url-Scheme X-Https Front-End-Https X-Host X-Via X-BlueCoat-Via X-Original-URL
X-Rewrite-URL X-Real-Port X-Proxy-For Proxy-Connection X-Request-Start X-Forwarder-For
Akamai-Origin-Hop X-Akamai-Edgescape Tailscale-User-Login X-Goog-Authenticated-User-Email
X-SSL-Client-Verify Incap-Client-IP X-Sucuri-ClientIP X-Queue-Start X-Proxied-By X-Source-IP
X-NF-Request-Id Fastly-FF
"""

PLAIN = """
Accept Accept-Encoding Accept-Language Cache-Control Cookie If-None-Match Last-Event-ID
Traceparent Upgrade-Insecure-Requests User-Agent X-Request-Id
"""


@pytest.mark.parametrize(
    "header",
    FORWARDED.split(),
)
async def test_who_was_passed_on_by_a_proxy_is_not_taken_for_local(header: str) -> None:
    async with scene() as bank:
        assert await listed(bank.caller({header: "127.0.0.1"})) == 401


@pytest.mark.parametrize("header", PLAIN.split())
async def test_what_callers_send_themselves_does_not_count_as_a_proxy(header: str) -> None:
    async with scene() as bank:
        assert await listed(bank.caller({header: "1"})) == 200


async def test_a_demand_for_keys_holds_for_this_machine_too() -> None:
    async with scene(KEYS_ONLY) as bank:
        answer = await bank.caller().get("/v1/sessions")

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "UNAUTHENTICATED"
        assert await listed(await bank.keyed("read")) == 200


# Keys


async def test_a_key_is_kept_as_a_digest_only() -> None:
    async with scene() as bank:
        key_id, header = await bank.key("read")
        secret = header["Authorization"].partition("_")[2].partition("_")[2]

        [kept] = await list_keys(bank.app.store)

        assert kept.key_id == key_id
        assert secret
        assert secret not in repr(kept)


async def test_a_revoked_key_opens_nothing_from_then_on() -> None:
    async with scene() as bank:
        key_id, header = await bank.key("read")
        caller = bank.caller(header, peer=ELSEWHERE)
        assert await listed(caller) == 200

        await revoke_key(bank.app.store, key_id, bank.app.clock.now())

        assert await listed(caller) == 401
        assert await listed(bank.caller(header)) == 401, "a bad key is not the same as none"


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key[:-1],
        lambda key: key + "x",
        lambda key: key.replace("Bearer", "Basic"),
        lambda key: key.replace("Bearer ", ""),
        lambda key: key.replace("outlast_", ""),
        lambda key: key.rpartition("_")[0],
        lambda key: key.partition("_")[0] + "_" * 200,
        lambda key: "Bearer " + "outlast_" + "a" * 5000,
        lambda key: "Bearer outlast_\u00e9_x",
        lambda key: "Bearer",
        lambda key: "",
    ],
)
async def test_what_is_almost_a_key_is_none(change: Any) -> None:
    async with scene() as bank:
        _, header = await bank.key("read")

        wrong = change(header["Authorization"]).encode("latin-1")

        assert await listed(bank.caller({"Authorization": wrong})) == 401


async def test_two_keys_in_one_request_are_none() -> None:
    async with scene() as bank:
        _, header = await bank.key("read")
        twice = [("Authorization", header["Authorization"])] * 2

        assert await listed(bank.caller(twice)) == 401


# Scopes


def scoped(document: Json) -> Iterator[tuple[str, str, str]]:
    """Give every operation that needs a scope, and that scope."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            for needed in operation.get("security", ()):
                for scope in needed.get("key", ()):
                    yield method, path, scope


NEEDED = {
    "read": """get /v1/sessions, get /v1/sessions/{session_id},
        get /v1/sessions/{session_id}/history, get /v1/sessions/{session_id}/milestones,
        get /v1/sessions/{session_id}/result,
        get /v1/sessions/{session_id}/stream, get /v1/streams/sessions/{session_id},
        head /v1/streams/sessions/{session_id}, get /v1/agents/{name}/{key},
        head /v1/agents/{name}/{key}, get /v1/requests, get /v1/lanes,
        get /v1/usage, get /v1/usage/total, get /v1/budgets,
        get /v1/runs, get /v1/runs/{run_id}, head /v1/runs/{run_id},
        get /v1/runs/{run_id}/steps""",
    "send": """post /v1/sessions, post /v1/deliver, post /v1/agents/{name}/{key},
        post /v1/sessions/{session_id}/cancel, post /v1/sessions/{session_id}/end,
        post /v1/sessions/{session_id}/retry, post /v1/sessions/{session_id}/compact,
        post /v1/sessions/{session_id}/rewind, post /v1/bulk/retry, post /v1/bulk/cancel,
        post /v1/workflows/{name}, post /v1/runs/{run_id}/cancel, post /v1/runs/{run_id}/retry,
        post /v1/runs/{run_id}/events""",
    "approve": "post /v1/requests/{request_id}",
    "internals": """get /v1/workers, get /v1/metrics, get /v1/providers,
        post /v1/providers/try, get /v1/sessions/{session_id}/state,
        get /v1/queues, get /v1/queues/{name}, get /v1/deployments""",
    "admin": """delete /v1/sessions/{session_id}, post /v1/sessions/{session_id}/state,
        post /v1/queues/{name}, delete /v1/queues/{name}, put /v1/budgets,
        post /v1/sessions/{session_id}/anchor,
        post /v1/deployments/{name}/promote, post /v1/deployments/{name}/retire""",
}


async def test_the_scopes_of_all_operations_are_these() -> None:
    async with scene() as bank:
        found = {(f"{method} {path}", scope) for method, path, scope in scoped(bank.api.openapi())}

    expected = {
        (operation.strip(), scope)
        for scope, operations in NEEDED.items()
        for operation in operations.split(",")
    }
    assert found == expected


async def test_every_operation_needs_the_scope_that_its_description_names() -> None:
    settings = ServerSettings(rate=0)
    async with scene(settings) as bank:
        document = bank.api.openapi()
        operations = [*scoped(document)]
        for method, path, needed in operations:
            url = path.format(
                session_id="ses_x",
                run_id="run_x",
                request_id="req_x",
                token="x",
                name="teller",
                key="k",
            )
            body = {"agent": "teller", "message": "a", "option": "approve"}
            everything_else = [scope for scope in SCOPES if scope not in (needed, "admin")]

            without = await bank.keyed(*everything_else)
            refused = await without.request(method, url, json=body)
            allowed = await (await bank.keyed(needed)).request(method, url, json=body)

            assert refused.status_code == 403, (method, path)
            if method != "head":
                assert refused.json()["error"]["code"] == "MISSING_SCOPE"
            assert allowed.status_code != 403, (method, path)
        assert {scope for _, _, scope in operations} == set(SCOPES)


OPEN = {
    ("post", "/v1/callbacks/{token}"),  # the token is the key
    *OF_OTHERS,
    ("get", "/v1/healthz"),
    ("get", "/v1/readyz"),
}


async def test_every_operation_asks_for_a_key_unless_it_is_named_here() -> None:
    async with scene() as bank:
        document = bank.api.openapi()
        unasked = {
            (method, path)
            for path, item in document["paths"].items()
            for method, operation in item.items()
            if not operation.get("security")
        }
        assert unasked <= OPEN
        stranger = bank.caller(peer=ELSEWHERE)
        for path, item in document["paths"].items():
            for method in item:
                if (method, path) not in unasked:
                    answer = await stranger.request(method, path, json={})
                    assert answer.status_code == 401, (method, path)


async def test_messages_need_one_scope_and_answers_another() -> None:
    async with scene() as bank, bank.caller() as owner:
        session = (await owner.start("refund"))["session_id"]
        [asked] = (await owner.ask("GET", "/requests"))["requests"]
        path = f"/sessions/{session}/deliveries"
        answer = {"answers": [{"request_id": asked["request_id"], "option": "deny"}]}
        sender, approver = await bank.keyed("send"), await bank.keyed("approve")

        assert await sender.refused("POST", path, 403, json=answer) == "MISSING_SCOPE"
        assert await approver.refused("POST", path, 403, json={"message": "a"}) == "MISSING_SCOPE"
        await approver.ask("POST", path, 202, json=answer)
        await sender.ask("POST", path, 202, json={"message": "a"})


async def test_who_may_only_read_is_not_told_addresses_that_take_messages() -> None:
    async with scene() as bank, bank.caller() as owner:
        started = await owner.start()
        reader = await bank.keyed("read")
        path = f"/sessions/{started['session_id']}"

        assert (await owner.ask("GET", path))["continuation_token"]
        assert (await reader.ask("GET", path))["continuation_token"] is None
        assert started["continuation_token"] not in str(await reader.events(started["session_id"]))


async def test_who_owns_a_lane_is_shown_to_insiders_only() -> None:
    async with scene() as bank, bank.caller() as owner:
        await owner.start()

        [told] = (await (await bank.keyed("read")).ask("GET", "/lanes"))["lanes"]
        [whole] = (await (await bank.keyed("read", "internals")).ask("GET", "/lanes"))["lanes"]

        assert told["fence"] is None
        assert whole["fence"] == 1


async def test_what_was_sent_is_written_down_under_the_keys_name() -> None:
    async with scene() as bank, await bank.keyed("send", "read", name="till 3") as till:
        session = (await till.start())["session_id"]
        await till.ask("POST", f"/sessions/{session}/deliveries", 202, json={"message": "a"})

        events = await till.events(session)

        assert events[0]["data"]["principal"] == "till 3"
        principal = [
            each["data"].get("principal") for each in events if each["type"] == "delivery.queued"
        ]
        assert principal[-1] == "till 3"


# A user's own authentication


def staff(request: Request) -> Principal | None:
    if request.headers.get("x-staff") != "ada":
        return None
    return Principal("acme", "ada", frozenset({"read"}))


async def staff_later(request: Request) -> Principal | None:
    return staff(request)


@pytest.mark.parametrize("authenticate", [staff, staff_later])
async def test_an_app_may_say_itself_who_is_calling(authenticate: Any) -> None:
    async with scene(ServerSettings(authenticate=authenticate)) as bank:
        ada = bank.caller({"X-Staff": "ada"}, peer=ELSEWHERE)

        assert await listed(ada) == 200
        assert (await ada.post("/v1/sessions", json={})).status_code == 403
        assert await listed(bank.caller({"X-Staff": "eve"}, peer=ELSEWHERE)) == 401
        assert await listed(bank.caller()) == 401, "who is local is no exception then"
        assert await listed(await bank.keyed("read")) == 200


async def test_an_authentication_that_fails_lets_nobody_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(request: Request) -> Principal | None:
        raise RuntimeError("the directory of staff is away: password=hunter2")

    def confused(request: Request) -> Any:
        return "ada"

    for authenticate in (broken, confused):
        async with scene(ServerSettings(authenticate=authenticate)) as bank:
            answer = await bank.caller().get("/v1/sessions")
            assert answer.status_code == 500
            assert "hunter2" not in answer.text
    assert "a request could not be answered" in caplog.text


# Logins that end


class Logins:
    """Who is logged in, as an app of the user's knows it."""

    def __init__(self) -> None:
        self.names = {"ada"}
        self.scopes = frozenset({"read", "send"})
        self.asked = 0

    def __call__(self, request: Request) -> Principal | None:
        self.asked += 1
        name = request.cookies.get("who", "")
        return Principal("default", name, self.scopes) if name in self.names else None


async def drain(pieces: AsyncIterator[bytes]) -> None:
    async for _ in pieces:
        pass


@pytest.mark.parametrize("change", ["logout", "fewer scopes"])
async def test_a_stream_ends_when_its_login_does(change: str) -> None:
    logins = Logins()
    settings = ServerSettings(port=0, authenticate=logins, heartbeat=0.05)
    async with (
        scene() as bank,
        on_a_socket(bank.app, settings) as (_, port),
        Caller(base_url=f"http://127.0.0.1:{port}", cookies={"who": "ada"}) as ada,
    ):
        session = (await ada.start("hello"))["session_id"]
        async with ada.stream("GET", f"/v1/sessions/{session}/stream") as stream:
            pieces = stream.aiter_raw()
            await anext(pieces)
            if change == "logout":
                logins.names.clear()
            else:
                logins.scopes = frozenset({"send"})
            with pytest.raises(httpx.RemoteProtocolError):
                await asyncio.wait_for(drain(pieces), 60)


@pytest.mark.parametrize("what", ["poll", "result"])
async def test_who_waits_is_not_given_what_comes_after_its_login_or_its_key_ended(
    what: str,
) -> None:
    logins = Logins()
    async with scene(ServerSettings(authenticate=logins, long_poll=60)) as bank:
        ada = bank.caller({"Cookie": "who=ada"})
        started = await ada.start("hello")
        session, key_id, header = started["session_id"], *(await bank.key("read"))
        end = (await ada.ask("GET", f"/sessions/{session}"))["offset"]
        busy = await ada.ask("POST", "/sessions", 202, json={"agent": "teller", "message": "hang"})
        await bank.until(busy["session_id"], "tool.started")
        path = {
            "poll": f"/v1/streams/sessions/{session}?offset={end:016d}&live=long-poll",
            "result": f"/v1/sessions/{busy['session_id']}/result?wait=30",
        }[what]
        waiting = [asyncio.create_task(who.get(path)) for who in (ada, bank.caller(header))]
        backend = bank.api.state.backend
        while backend.streams.total < 2:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        logins.names.clear()
        await revoke_key(bank.app.store, key_id, 1)
        await (await bank.app.session(session)).send("a secret")
        await (await bank.app.session(busy["session_id"])).cancel("enough")

        for answer in await asyncio.gather(*waiting):
            assert answer.status_code == 401, answer.text
