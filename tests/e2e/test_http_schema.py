"""The OpenAPI document: it holds, whatever is sent; and it shows examples that fit.

Deeper: SCHEMA_EXAMPLES=200 pytest tests/e2e/test_http_schema.py
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest
from http_scene import Json, on_a_socket, scene, teller

from outlast.server import ServerSettings

HERE = Path(__file__).parent
EXECUTABLE = str(Path(sys.executable).with_name("schemathesis"))
EXAMPLES = os.environ.get("SCHEMA_EXAMPLES", "2")
SETTINGS = ServerSettings(port=0, rate=0, require_key=True, heartbeat=0.05, long_poll=0.01)

LESS = '[phases.coverage]\nunexpected-methods = ["PUT"]\n'
"""One method that a route does not have stands for all."""

# What a schema cannot say (an offset that the log has reached, a cursor that a page ended with)
# is refused although it fits; every other check is made.
CHECKS = ("--checks", "all", "--exclude-checks", "positive_data_acceptance")


async def test_nothing_that_is_sent_meets_an_error_of_ours_or_an_answer_not_described(
    tmp_path: Path,
) -> None:
    (tmp_path / "schemathesis.toml").write_text(LESS)
    async with scene(SETTINGS) as bank:
        sessions = [await bank.app.start(teller, text) for text in ("hello", "refund", "two")]
        [asked] = (await sessions[1].wait()).requests
        _, header = await bank.key()
        known = {
            "session_id": [session.id for session in sessions],
            "request_id": [asked.request_id],
            "name": ["teller"],
        }
        async with on_a_socket(bank.app, SETTINGS) as (host, port):
            process = await asyncio.create_subprocess_exec(
                *(EXECUTABLE, "run", f"http://{host}:{port}/v1/openapi.json", *CHECKS),
                *("--header", f"Authorization: {header['Authorization']}"),
                *("--max-examples", EXAMPLES, "--seed", "17", "--no-color"),
                *("--request-timeout", "20", "--warnings", "off"),
                cwd=tmp_path,
                env={
                    **os.environ,
                    "PYTHONPATH": str(HERE),
                    "SCHEMATHESIS_HOOKS": "schema_hooks",
                    "OUTLAST_KNOWN": json.dumps(known),
                },
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            told, _ = await process.communicate()

        assert process.returncode == 0, told.decode()
        count = sum(len(item) for item in bank.api.openapi()["paths"].values())
        assert f"{count} selected / {count} total" in told.decode()


@pytest.fixture(scope="module")
def document() -> Json:
    async def read() -> Json:
        async with scene(worker=None) as bank:
            return bank.api.openapi()

    return asyncio.run(read())


def with_definitions(document: Json, schema: Json) -> Json:
    return {**schema, "components": document["components"]}


def examples(document: Json) -> Iterator[tuple[str, Json, object]]:
    for name, schema in document["components"]["schemas"].items():
        for example in schema.get("examples", ()):
            yield name, schema, example


def test_every_example_fits_the_schema_that_it_is_an_example_of(document: Json) -> None:
    found = [*examples(document)]

    for _, schema, example in found:
        jsonschema_rs.validate(with_definitions(document, schema), example)

    assert len(found) >= 15


def contents(document: Json) -> Iterator[tuple[str, Json]]:
    """Give the JSON bodies of all operations, in and out, those of errors left out."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            where = f"{method} {path}"
            body = operation.get("requestBody", {}).get("content", {})
            yield from ((f"{where} takes", each) for each in body.values())
            for status, answer in operation["responses"].items():
                told = answer.get("content", {}).get("application/json")
                if told and status.startswith("2"):
                    yield f"{where} gives {status}", told


def has_example(document: Json, content: Json) -> bool:
    schema = content.get("schema", {})
    parts = [schema, *schema.get("anyOf", ())]
    names = [part.get("$ref", "").rpartition("/")[2] for part in parts]
    shown = [document["components"]["schemas"].get(name, {}) for name in names]
    return "example" in content or any("examples" in each for each in (*parts, *shown))


def test_every_body_is_shown_by_an_example(document: Json) -> None:
    assert [where for where, body in contents(document) if not has_example(document, body)] == []


def test_every_operation_says_what_it_does_and_which_scope_it_needs(document: Json) -> None:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["description"], (method, path)
            assert operation["tags"], (method, path)
    ids = [each["operationId"] for item in document["paths"].values() for each in item.values()]
    assert len(ids) == len(set(ids))
    assert document["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
