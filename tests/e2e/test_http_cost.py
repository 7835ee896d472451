"""The cost of a request follows its size, and its body is read only for who may send it."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from hostile_scene import hostile
from http_scene import on_a_socket, scene

from outlast.server import ServerSettings
from outlast.server.model import (
    budget,
    bulk,
    delivery,
    fleet,
    message,
    queue,
    request,
    run,
    state,
)
from outlast.server.model.shape import In

MEBIBYTE = 1024 * 1024


def start(message: str, more: str = "") -> bytes:
    return f'{{"agent": "teller", "message": {message}{more}}}'.encode()


def listed(item: str, count: int) -> str:
    return f"[{','.join([item] * count)}]"


def unknown_fields(count: int) -> str:
    return "".join(f', "n{number}": 0' for number in range(count))


COSTLY = {
    "a long name of a field": start('"a"', f', "{"x" * 2 * MEBIBYTE}": 0'),
    "a long kind of a part": start(f'[{{"kind": "{"x" * 2 * MEBIBYTE}"}}]'),
    "zeros": start(listed("0", 660_000)),
    "empty objects": start(listed("{}", 450_000)),
    "as many zeros as there may be values": start(listed("0", 49_000)),
    "as many parts as there may be values": start(listed("{}", 24_000)),
    "valid parts": start(listed('"a"', 49_000)),
    "many unknown fields": start('"a"', unknown_fields(100_000)),
    "as many unknown fields as there may be values": start('"a"', unknown_fields(49_000)),
    "types of events": start(
        '"a"', f', "webhook": {{"url": "https://a.example", "events": {listed("0", 49_000)}}}'
    ),
    "unknown fields of a part": start(f'[{{"kind": "text", "text": "a"{unknown_fields(49_000)}}}]'),
}


async def test_no_body_costs_many_times_its_size(tmp_path: Path) -> None:
    async with hostile(tmp_path) as server, await server.caller("send") as caller:
        caller.headers["Content-Type"] = "application/json"
        await caller.post("/v1/sessions", content=start("0"))
        for name, body in COSTLY.items():
            before = server.peak()

            response = await caller.post("/v1/sessions", content=body)

            assert response.status_code in (400, 422), (name, response.text)
            assert len(response.content) < 4096, name
            # Twice the size for the copies, some for the values, and what the allocator keeps.
            assert server.peak() - before < 48 * MEBIBYTE, name


async def test_a_large_message_is_taken_and_one_that_is_too_large_is_refused(
    tmp_path: Path,
) -> None:
    async with hostile(tmp_path) as server, await server.caller() as caller:
        text = "a,[{" * MEBIBYTE

        started = await caller.ask(
            "POST", "/sessions", 202, json={"agent": "teller", "message": text}
        )

        assert started["session_id"]
        too_large = {"agent": "teller", "message": text * 2}
        assert await caller.refused("POST", "/sessions", 413, json=too_large) == "BODY_TOO_LARGE"


async def test_a_large_body_is_read_beside_the_loop_and_a_small_one_on_it() -> None:
    def readers() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name.startswith("outlast-body")}

    async with scene() as bank, bank.caller() as caller:
        others = readers()
        for length, are_there in ((1000, False), (MEBIBYTE, True)):
            message = {"agent": "teller", "message": "a" * length}
            await caller.ask("POST", "/sessions", 202, json=message)

            assert bool(readers() - others) is are_there


async def test_the_scope_is_looked_at_before_a_byte_of_the_body_is_read() -> None:
    settings = ServerSettings(port=0, require_key=True)
    async with scene() as bank, on_a_socket(bank.app, settings) as (_, port):
        for method, path, operation in taking_bodies(bank.api.openapi()):
            _, header = await bank.key("read")
            head = (
                f"{method.upper()} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: {header['Authorization']}\r\n"
                "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head.encode())
            async with asyncio.timeout(60):
                line = await reader.readline()
            writer.close()

            assert line.split()[1] == b"403", operation


def taking_bodies(document: dict[str, object]) -> list[tuple[str, str, str]]:
    paths = json.loads(json.dumps(document))["paths"]
    found = [
        (method, path.replace("{", "").replace("}", ""), operation["operationId"])
        for path, item in paths.items()
        for method, operation in item.items()
        if "requestBody" in operation and operation.get("security")
    ]
    assert len(found) > 5
    return found


def inputs(kind: type[In]) -> list[type[In]]:
    return [each for child in kind.__subclasses__() for each in (child, *inputs(child))]


UNBOUNDED = {"text", "message", "data", "args"}
"""Only the size of the body bounds what people and programs say."""


def test_every_text_and_list_that_is_sent_has_a_length() -> None:
    assert {each.__module__ for each in inputs(In)} == {
        module.__name__
        for module in (budget, bulk, delivery, fleet, message, queue, request, run, state)
    }
    for kind in inputs(In):
        for name, field in kind.model_json_schema()["properties"].items():
            for shape in field.get("anyOf", [field]):
                if name in UNBOUNDED or shape.get("const") or shape.get("enum"):
                    continue
                if shape.get("type") == "string":
                    assert "maxLength" in shape, (kind.__name__, name)
                if shape.get("type") == "array":
                    assert "maxItems" in shape, (kind.__name__, name)


@pytest.mark.parametrize("count", [1000, 1001])
async def test_a_message_has_so_many_parts_at_most(count: int) -> None:
    async with scene() as bank, bank.caller() as caller:
        body = {"agent": "teller", "message": ["a"] * count}
        response = await caller.post("/v1/sessions", json=body)

        assert response.status_code == (202 if count == 1000 else 422)
