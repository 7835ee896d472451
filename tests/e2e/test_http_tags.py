"""Tags over HTTP: given with whatever starts a session, and looked for in lists."""

from __future__ import annotations

from typing import Any

import pytest
from http_scene import scene

TAGS = {"customer": "42", "n" * 64: "50%_of=" + "ü" * 200}
STARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "start": ("/sessions", {"agent": "teller"}),
    "token": ("/deliver", {"agent": "teller", "continuation_token": "thread-1"}),
    "key": ("/agents/teller/customer-42", {}),
}


@pytest.mark.parametrize(("path", "body"), STARTS.values(), ids=STARTS)
async def test_a_session_is_found_by_the_tags_that_it_was_started_with(
    path: str, body: dict[str, Any]
) -> None:
    async with scene(worker=None) as bank:
        caller = bank.caller()
        await caller.ask("POST", "/sessions", 202, json={"agent": "teller", "message": "hello"})
        started = await caller.ask(
            "POST", path, 202, json={**body, "message": "hello", "tags": TAGS}
        )
        session = await caller.ask("GET", f"/sessions/{started['session_id']}")
        pairs = [f"{name}={value}" for name, value in TAGS.items()]
        lists = [
            await caller.ask("GET", "/sessions", params={"tag": tags})
            for tags in (pairs, pairs[1:], [*pairs, *pairs], ["customer=4"], [])
        ]

        assert session["tags"] == TAGS
        found = [[item["tags"] for item in page["sessions"]] for page in lists]
        assert found == [[TAGS], [TAGS], [TAGS], [], [TAGS, {}]]


WRONG_BODIES: dict[str, Any] = {
    "names": ["customer"],
    "a number": {"customer": 42},
    "a nested value": {"customer": {"id": "42"}},
    "a name with a space": {"my customer": "42"},
    "an empty value": {"customer": ""},
    "NUL": {"customer": "a\0b"},
    "too many": {f"n{number}": "x" for number in range(17)},
}


@pytest.mark.parametrize("tags", WRONG_BODIES.values(), ids=WRONG_BODIES)
async def test_tags_that_cannot_be_start_nothing(tags: Any) -> None:
    async with scene(worker=None) as bank:
        caller = bank.caller()
        for path, body in STARTS.values():
            refused = await caller.ask(
                "POST", path, 422, json={**body, "message": "hello", "tags": tags}
            )
            assert "tag" in str(refused)
        assert (await caller.ask("GET", "/sessions"))["sessions"] == []


@pytest.mark.parametrize(
    "tags", [["customer"], ["=42"], ["a b=c"], ["customer=1", "customer=2"], ["a=b"] * 17]
)
async def test_a_list_by_tags_that_cannot_be_is_refused(tags: list[str]) -> None:
    async with scene(worker=None) as bank:
        refused = await bank.caller().ask("GET", "/sessions", 422, params={"tag": tags})

        assert "tag" in str(refused)


async def test_nobody_finds_another_tenants_sessions_by_their_tags() -> None:
    async with scene(worker=None) as bank:
        acme, other = await bank.keyed(tenant="acme"), await bank.keyed(tenant="other")
        body = {"agent": "teller", "message": "hello", "tags": TAGS}
        await acme.ask("POST", "/sessions", 202, json=body)
        found = [
            (await caller.ask("GET", "/sessions", params={"tag": "customer=42"}))["sessions"]
            for caller in (acme, other)
        ]

        assert [len(each) for each in found] == [1, 0]
