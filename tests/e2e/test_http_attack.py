"""A tenant that means harm: at once with others, and with names made for it, on each database."""

from __future__ import annotations

import asyncio
import unicodedata
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_scene import Caller, on_a_socket, scene

from outlast.server import ServerSettings
from outlast.server.key import revoke_key

ANY_RATE = ServerSettings(rate=0, heartbeat=0.05)


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/outlast.db"
    return str(request.getfixturevalue("postgres_url"))


async def test_of_many_answers_at_once_one_counts_and_its_call_runs_once(store: str) -> None:
    async with scene(ANY_RATE, store) as bank:
        callers = [await bank.keyed(name=f"key {number}") for number in range(4)]
        session = (await callers[0].start("refund"))["session_id"]
        [asked] = (await callers[0].ask("GET", "/requests"))["requests"]
        path = f"/v1/requests/{asked['request_id']}"
        answers: list[dict[str, Any]] = [
            {"option": "approve", "args": {"order": 17, "cents": cents}} for cents in range(1, 17)
        ]
        answers += [{"option": "deny", "text": f"no {number}"} for number in range(8)]

        said = await asyncio.gather(
            *(callers[n % 4].post(path, json=body) for n, body in enumerate(answers))
        )

        taken = [n for n, response in enumerate(said) if response.status_code == 202]
        assert len(taken) == 1
        refused = {(r.status_code, r.json()["error"]["code"]) for r in said if r.status_code != 202}
        assert refused == {(409, "REQUEST_CLOSED")}
        await callers[0].result(session)
        events = await callers[0].events(session)
        [resolved] = [e["data"] for e in events if e["type"] == "request.resolved"]
        ended = [e for e in events if e["type"] in ("tool.completed", "tool.denied")]
        assert len(ended) == 1
        winner = answers[taken[0]]
        assert resolved["option"] == winner["option"]
        if winner["option"] == "approve":
            assert resolved["args"] == winner["args"]
            assert f"gave back {winner['args']['cents']} for 17" in str(ended[0]["data"])


ALIKE = [
    ("café", unicodedata.normalize("NFD", "café")),
    ("order", "ORDER"),
    ("order", "order "),
    ("ﬁ", "fi"),
    ("İ", "i̇"),
    ("straße", "strasse"),
    ("a%b", "a_b"),
    ("a\\b", "a\\\\b"),
    ("{a,b}", '{"a","b"}'),
    ("null", "NULL"),
    ("1", "01"),
    ("\U0001d49c" * 127, "\U0001d49c" * 126 + "A"),
]
"""Names that some database, collation or array syntax takes for one and the same."""


async def test_names_that_look_alike_are_never_taken_for_each_other(store: str) -> None:
    async with scene(ANY_RATE, store, worker=None) as bank, await bank.keyed() as caller:
        for one, other in ALIKE:
            found: dict[str, set[str]] = {"token": set(), "dispatch": set(), "key": set()}
            for name in (one, other, one):
                body = {"agent": "teller", "message": "a"}
                sent = {**body, "continuation_token": f"t{name}"}
                found["token"].add(await session_of(caller, "/deliver", sent))
                sent = {**body, "dispatch_id": f"d{name}"}
                found["dispatch"].add(await session_of(caller, "/sessions", sent))
                key = f"/agents/teller/{quoted(name)}"
                found["key"].add(await session_of(caller, key, {"message": "a"}))
            assert {what: len(ids) for what, ids in found.items()} == dict.fromkeys(found, 2), one
            [session] = {*found["token"]} - {await token_session(caller, other)}
            lanes = [{"message": "a", "lane": name} for name in (one, other)]
            for sent in lanes:
                await caller.ask("POST", f"/sessions/{session}/deliveries", 202, json=sent)
            shown = await caller.ask("GET", "/lanes", params={"session_id": session})
            assert {one, other} <= {each["lane"] for each in shown["lanes"]}


async def token_session(caller: Caller, name: str) -> str:
    sent = {"agent": "teller", "message": "a", "continuation_token": f"t{name}"}
    return await session_of(caller, "/deliver", sent)


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())


async def session_of(caller: Caller, path: str, body: dict[str, Any]) -> str:
    return str((await caller.ask("POST", path, 202, json=body))["session_id"])


async def test_a_key_that_is_revoked_ends_its_streams_and_nobody_elses(store: str) -> None:
    async with scene(store=store) as bank, on_a_socket(bank.app, ANY_RATE_ON_A_PORT) as (_, port):
        url = f"http://127.0.0.1:{port}"
        key_id, revoked = await bank.key(name="revoked")
        _, kept = await bank.key(name="kept")
        async with (
            Caller(base_url=url, headers=revoked, timeout=60) as one,
            Caller(base_url=url, headers=kept, timeout=60) as other,
        ):
            session = (await one.start("hello"))["session_id"]
            path = f"/v1/sessions/{session}/stream"
            async with one.stream("GET", path) as ending, other.stream("GET", path) as going_on:
                first, second = ending.aiter_raw(), going_on.aiter_raw()
                await anext(first)
                await anext(second)

                await revoke_key(bank.app.store, key_id, 1)

                with pytest.raises(httpx.RemoteProtocolError):
                    await asyncio.wait_for(drained(first), 60)
                assert await one.refused("GET", "/sessions", 401) == "UNAUTHENTICATED"
                await (await bank.app.session(session)).send("a secret")
                async with asyncio.timeout(60):
                    while b"a secret" not in await anext(second):
                        pass


ANY_RATE_ON_A_PORT = ServerSettings(port=0, rate=0, heartbeat=0.05, require_key=True)


async def drained(pieces: Any) -> bytes:
    return b"".join([piece async for piece in pieces])


async def test_no_number_in_a_body_or_an_address_breaks_a_route(store: str) -> None:
    numbers = ["0", "-1", "1e308", "1" + "0" * 18, str(2**63), str(2**64 - 1), "0.1e-320"]
    refused = [str(2**64), "1" + "0" * 400, "1e309", "NaN", "-Infinity", "0x10", "1_000"]
    async with scene(ANY_RATE, store) as bank, await bank.keyed() as caller:
        session = (await caller.start("refund"))["session_id"]
        [asked] = (await caller.ask("GET", "/requests"))["requests"]
        kind = {"Content-Type": "application/json"}
        for number in (*numbers, *refused):
            answer = f'{{"option": "nothing", "args": {{"order": 17, "cents": {number}}}}}'
            for path, body in (
                (f"/v1/requests/{asked['request_id']}", answer),
                ("/v1/sessions", f'{{"agent": "teller", "message": "a", "deadline": {number}}}'),
                (f"/v1/sessions/{session}/deliveries", f'{{"message": {number}}}'),
            ):
                said = await caller.post(path, content=body.encode(), headers=kind)
                wanted = 400 if number in refused else 422
                assert said.status_code == wanted, (path, number, said.text)
            for query in ("limit", "wait"):
                place = "/v1/sessions" if query == "limit" else f"/v1/sessions/{session}/result"
                said = await caller.get(place, params={query: number})
                assert said.status_code < 500, (query, number)
        assert (await caller.ask("GET", "/requests"))["requests"] == [asked]
