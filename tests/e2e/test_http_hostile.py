"""What somebody sends who means no good, or whose program is broken: always an answer of ours."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from http_scene import Json, scene

from outlast.server import ServerSettings
from outlast.server.key import PREFIX

PAGE = "text/html; charset=utf-8"
"""What people are shown who come back from signing in."""

NASTY = (
    "\0",
    "a\0b",
    "x" * 300,
    "é" * 256,
    "\u202egnp",
    "../../etc/passwd",
    "..%2f..",
    "%00",
    "' OR 1=1 --",
    "-1",
    "99999999999999999999",
    "1e999",
    " ",
    "\r\nSet-Cookie: a=b",
)


def is_ours(response: httpx.Response) -> bool:
    """Whether an answer is no error of the server's, and in our shape if it is one at all."""
    if response.status_code < 400:
        return True
    if response.request.method == "HEAD" or response.headers["content-type"] == PAGE:
        return response.status_code < 500
    shape = set(response.json()["error"])
    return response.status_code < 500 and shape == {"code", "message", "hint", "details"}


def operations(document: Json) -> Iterator[tuple[str, str, list[Json]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield method, path, operation.get("parameters", [])


# Names, cursors, headers


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each database minds other things: a NUL, half a character, a number that is too large."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/outlast.db"
    return str(request.getfixturevalue("postgres_url"))


async def test_no_name_or_cursor_or_header_breaks_a_route(store: str) -> None:
    async with scene(ServerSettings(long_poll=0.01), store) as bank, bank.caller() as caller:
        session = (await caller.start("hello", mode="task"))["session_id"]
        sane = {"session_id": session, "name": "teller", "key": "k"}
        body = {"agent": "teller", "message": "a", "option": "a"}
        for method, path, parameters in operations(bank.api.openapi()):
            usual = {p["name"]: sane.get(p["name"], "x") for p in parameters if p["in"] == "path"}
            for place, name in ((each["in"], each["name"]) for each in parameters):
                for text in NASTY:
                    fill = {name: quote(text, safe="")} if place == "path" else {}
                    response = await caller.request(
                        method,
                        path.format(**{**usual, **fill}),
                        params={name: text} if place == "query" else {},
                        headers={name: header(text)} if place == "header" else {},
                        json=body,
                    )

                    assert is_ours(response), (method, path, name, text, response.text)
                    assert "set-cookie" not in response.headers


MADE_UP_VALUES: list[object] = [
    ["\0", "main"],
    ["ses_x", "\0"],
    ["ses_x", "x" * 300],
    [1, 2],
    [],
    {},
    "a",
    None,
]
MADE_UP = [json.dumps(value) for value in MADE_UP_VALUES]


async def test_a_cursor_that_somebody_made_up_is_one_error_that_names_it(store: str) -> None:
    async with scene(store=store) as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]
        bad = {
            "/lanes": ("cursor", [*MADE_UP, *(encoded(text) for text in MADE_UP), "====", "a", ""]),
            "/sessions": ("cursor", ["", "a\0", "x" * 300]),
            "/requests": ("cursor", ["", "a\0", "x" * 300, "req_made_up"]),
            f"/sessions/{session}": ("lanes_after", ["", "a\0", "x" * 300, "no such lane"]),
            f"/sessions/{session}/history": (
                "cursor",
                ["-1", "x", "1", "1e3", "9" * 30, "", "\u0663.\u0661", "99999999999999.0"],
            ),
            f"/sessions/{session}/milestones": ("cursor", ["-1", "x", "", "9" * 30, "\u0663"]),
            f"/sessions/{session}/stream": ("after", [*NASTY, "", "1-", "1-zz", "\u0663", "1\n"]),
        }
        for path, (name, texts) in bad.items():
            for text in texts:
                response = await caller.get(f"/v1{path}", params={name: text})

                said = response.json()["error"]
                assert (response.status_code, said["code"]) == (400, "INVALID_CURSOR"), (path, text)
                assert name in (said["details"].get("cursor"), said["message"].split("`")[1])
                assert len(response.content) < 1000


async def test_a_cursor_that_no_log_has_reached_is_gone(store: str) -> None:
    async with scene(store=store) as bank, bank.caller() as caller:
        session = (await caller.start())["session_id"]
        for number in (10**6, 2**31, 2**32 + 1, 2**53, 10**16 - 1):
            for path in (f"/sessions/{session}/stream", f"/streams/sessions/{session}"):
                name, text = (
                    ("after", str(number))
                    if "streams" not in path
                    else (
                        "offset",
                        f"{number:016d}",
                    )
                )
                code = await caller.refused("GET", path, 410, params={name: text})
                assert code == "CURSOR_AHEAD"


def encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode()


def header(text: str) -> bytes:
    """Return a text as a client can send it in a header."""
    return text.encode().replace(b"\r\n", b"").replace(b"\0", b"")


async def test_no_text_in_a_body_breaks_a_route(store: str) -> None:
    async with scene(store=store) as bank, bank.caller() as caller:
        session = (await caller.start("refund"))["session_id"]
        [asked] = (await caller.ask("GET", "/requests"))["requests"]
        deliveries = f"/sessions/{session}/deliveries"
        names = (
            "agent message mode dispatch_id continuation_token lane deadline webhook reason "
            "turn option text request_id"
        ).split()
        for text in NASTY:
            for path in ("/sessions", "/deliver", deliveries, f"/sessions/{session}/cancel"):
                for name in names:
                    body = {"agent": "teller", "message": "a", "continuation_token": "t"}
                    sent = {name: text} if path.startswith("/sessions/") else {**body, name: text}
                    response = await caller.post(f"/v1{path}", json=sent)
                    assert is_ours(response), (path, sent, response.text)
            answer = {"option": "approve", "args": {"order": 1, text: [text, {"a": text}]}}
            response = await caller.post(f"/v1/requests/{asked['request_id']}", json=answer)
            assert is_ours(response), (text, response.text)


ODD_VALUES: tuple[object, ...] = (
    *(-1, 2**63, 2**64 - 1, -(2**63), 1.5, 1e308),
    *("", "\0", "x" * 300, "\u0663", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"),
    *(None, [[]], {"\0": "\0"}),
)
LAST = ("/end", "/cancel", "/budgets")
"""What leaves less for others to be tried on."""


def fields_of(document: Json, schema: Json, seen: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Give the way to each field of a body and of what is in it; of a list, in its first."""
    for name, field in schema.get("properties", {}).items():
        yield [name]
        for part in [field, *field.get("anyOf", ())]:
            for inner in [part, *[each for each in [part.get("items")] if each]]:
                kind = inner.get("$ref", "").rpartition("/")[2]
                if kind and kind not in seen:
                    found = document["components"]["schemas"][kind]
                    for rest in fields_of(document, found, (*seen, kind)):
                        yield [name, *["0"] * (inner is not part), *rest]


def changed(body: Any, way: list[str], value: object) -> Any:
    """Return a body with another value at the end of a way, which is made where it is not there."""
    if not way:
        return value
    if way[0] == "0":
        return [changed(body[0] if isinstance(body, list) and body else {}, way[1:], value)]
    body = body if isinstance(body, dict) else {}
    return {**body, way[0]: changed(body.get(way[0]), way[1:], value)}


def bodies(document: Json) -> Iterator[tuple[str, str, Json, Json]]:
    """Give each operation that takes a body with an example of it and what it may be."""
    paths = sorted(document["paths"].items(), key=lambda item: item[0].endswith(LAST))
    for path, item in paths:
        for method, operation in item.items():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            for part in [schema, *schema.get("anyOf", ())]:
                if kind := part.get("$ref", "").rpartition("/")[2]:
                    found = document["components"]["schemas"][kind]
                    yield method, path, found.get("examples", [{}])[0], found


async def test_no_value_of_any_field_of_any_body_breaks_a_route(store: str) -> None:
    settings = ServerSettings(rate=0, long_poll=0.01)
    async with scene(settings, store) as bank, bank.caller() as caller:
        await bank.app.queues.set("reports", concurrency=2)
        session = (await caller.start("refund", continuation_token="t"))["session_id"]
        [asked] = (await caller.ask("GET", "/requests"))["requests"]
        run = (await caller.ask("POST", "/workflows/hold", 202, json={"input": "a"}))["run_id"]
        names = {"session_id": session, "run_id": run, "request_id": asked["request_id"]}
        known = {**names, "continuation_token": "t", "agent": "teller", "input": "a", "key": "k"}
        tried = 0
        document = bank.api.openapi()
        for method, path, example, schema in bodies(document):
            name = "hold" if "/workflows/" in path else "teller"
            address = path.format_map({**known, "name": name, "token": "x"})
            usual = {field: known.get(field, value) for field, value in example.items()}
            for way in ([], *fields_of(document, schema)):
                for value in ODD_VALUES:
                    tried += 1
                    sent = changed(usual, way, value)
                    if isinstance(sent, dict) and "dispatch_id" in sent and way != ["dispatch_id"]:
                        sent["dispatch_id"] = str(tried)
                    response = await caller.request(method, address, json=sent)

                    assert is_ours(response), (method, path, way, value, response.text)
        assert tried > 2000


async def test_no_token_opens_a_callback_or_breaks_it(store: str) -> None:
    async with scene(store=store) as bank, bank.caller() as caller:
        for text in NASTY:
            path = f"/v1/callbacks/{quote(text, safe='')}"
            response = await caller.post(path, content=b"\xff\0")

            assert response.status_code in (404, 405, 410)
            assert is_ours(response)


async def test_no_key_opens_the_door_or_breaks_it(store: str) -> None:
    async with scene(store=store) as bank:
        for text in NASTY:
            for form in (b"Bearer %b", b"Bearer " + PREFIX.encode() + b"%b_%b", b"%b"):
                value = form.replace(b"%b", header(text))
                response = await bank.caller({"Authorization": value}).get("/v1/sessions")
                assert response.status_code == 401


# Bodies

BODIES: dict[str, tuple[bytes, int]] = {
    "half an object": (b'{"agent": "teller", "message": "a"', 400),
    "two values": (b'{"agent": "teller", "message": "a"} {}', 400),
    "not UTF-8": (b'{"agent": "teller", "message": "\xff"}', 400),
    "UTF-16": ('{"agent": "teller", "message": "a"}'.encode("utf-16"), 400),
    "half a character": (b'{"agent": "teller", "message": "\\ud800"}', 400),
    "not a number": (b'{"agent": "teller", "message": NaN}', 400),
    "a name twice": (b'{"agent": "teller", "message": "a", "message": "b"}', 400),
    "a name twice, deep": (b'{"agent": "teller", "message": [{"a": 1, "a": 2}]}', 400),
    "deep": (b'{"agent": "teller", "message": ' + b"[" * 100_000, 400),
    "deep and whole": (b'{"message": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400),
    "a long number": (b'{"agent": "teller", "message": ' + b"1" * 10_000 + b"}", 400),
    "an integer of 400 digits": (b'{"agent": "teller", "message": 1' + b"0" * 400 + b"}", 400),
    "a list": (b"[]", 422),
    "null": (b"null", 422),
    "a text": (b'"agent"', 422),
    "nothing": (b"", 422),
    "unknown names": (b'{"agent": "teller", "message": "a", "tenant": "acme"}', 422),
    "wrong types": (b'{"agent": 1, "message": {"kind": "text"}}', 422),
    "no base64": (b'{"agent": "teller", "message": [{"kind": "image", "data": "!!!!"}]}', 422),
    "data and url": (
        b'{"agent": "teller", "message": [{"kind": "image", "data": "aGk=", "url": "x"}]}',
        422,
    ),
    "an empty message": (b'{"agent": "teller", "message": ""}', 422),
    "no parts": (b'{"agent": "teller", "message": []}', 422),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_makes_no_sense_is_refused_and_starts_nothing(name: str) -> None:
    body, status = BODIES[name]
    async with scene() as bank, bank.caller({"Content-Type": "application/json"}) as caller:
        response = await caller.post("/v1/sessions", content=body)

        assert response.status_code == status, response.text
        assert is_ours(response)
        assert (await caller.ask("GET", "/sessions"))["sessions"] == []


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "text/json",
        "*",
    ],
)
async def test_what_a_page_could_send_without_asking_first_is_refused(kind: str) -> None:
    body = json.dumps({"agent": "teller", "message": "a"}).encode()
    async with scene() as bank, bank.caller({"Content-Type": kind} if kind else None) as caller:
        response = await caller.post("/v1/sessions", content=body)

        assert response.status_code == 415
        assert (await caller.ask("GET", "/sessions"))["sessions"] == []


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON"])
async def test_json_is_json_however_it_is_spelled(kind: str) -> None:
    body = json.dumps({"agent": "teller", "message": "a"}).encode()
    async with scene() as bank, bank.caller({"Content-Type": kind}) as caller:
        assert (await caller.post("/v1/sessions", content=body)).status_code == 202


async def test_what_is_refused_is_not_repeated_to_whoever_reads_the_answer() -> None:
    async with scene() as bank, bank.caller() as caller:
        body = {"agent": "teller", "message": {"secret": "hunter2"}}

        response = await caller.post("/v1/sessions", json=body)

        assert response.status_code == 422
        assert "hunter2" not in response.text
