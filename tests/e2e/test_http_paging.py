"""Whatever there is much of is told page by page, and one bad row fails no page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from http_scene import FAST, OUTSIDE, Caller, Scene, scene

from outlast import Agent, Outlast, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.json_text import MAX_DEPTH, value_or_text
from outlast.core.message import UserMessage, text_of
from outlast.server.asgi import create
from outlast.store.listing import MOST_LANES_LISTED as MOST_LANES
from outlast.testing.scripted import ScriptedModel, call

LANES = MOST_LANES + 20


async def test_a_session_of_many_lanes_is_read_page_by_page(tmp_path: Path) -> None:
    async with scene(store=f"sqlite:///{tmp_path}/a.db", worker=None) as bank:
        caller = bank.caller()
        body = {"agent": "teller", "message": "hello"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        for number in range(LANES - 1):
            sent = {"message": "hello", "lane": f"lane {number}"}
            await caller.ask("POST", f"/sessions/{session}/deliveries", 202, json=sent)

        first = await caller.ask("GET", f"/sessions/{session}")
        more = {"lanes_after": first["next_lane"]}
        second = await caller.ask("GET", f"/sessions/{session}", params=more)
        [item] = (await caller.ask("GET", "/sessions"))["sessions"]

        assert (len(first["lanes"]), len(second["lanes"])) == (MOST_LANES, LANES - MOST_LANES)
        assert second["next_lane"] is None
        assert first["lane_count"] == item["lane_count"] == LANES
        names = [lane["lane"] for page in (first, second) for lane in page["lanes"]]
        assert len(set(names)) == LANES
        assert len(item["lanes"]) == MOST_LANES


async def test_a_conversation_is_read_page_by_page() -> None:
    async with scene() as bank:
        caller = bank.caller()
        session = (await caller.start("hello 0"))["session_id"]
        for number in range(1, 6):
            await say(caller, session, f"hello {number}")

        whole = await caller.ask("GET", f"/sessions/{session}/history")
        found, query, pages = [], {"limit": 5}, 0
        while query.get("cursor", "") is not None:
            page = await caller.ask("GET", f"/sessions/{session}/history", params=query)
            found += page["messages"]
            query["cursor"] = page.get("next_cursor")
            pages += 1

        assert (len(whole["messages"]), pages) == (12, 3)
        assert found == whole["messages"]
        assert "next_cursor" not in whole


async def say(caller: Caller, session: str, text: str) -> None:
    path = f"/sessions/{session}/deliveries"
    sent = await caller.ask("POST", path, 202, json={"message": text})
    await caller.result(session, sent["delivery_id"])


async def test_a_page_of_a_conversation_has_a_bounded_size_and_one_message_at_least() -> None:
    async with scene() as bank:
        caller = bank.caller()
        session = (await caller.start("x" * 1_200_000))["session_id"]

        page = await caller.ask("GET", f"/sessions/{session}/history")

        assert len(page["messages"]) == 1
        query = {"cursor": page["next_cursor"]}
        rest = await caller.ask("GET", f"/sessions/{session}/history", params=query)
        assert [each["type"] for each in rest["messages"]] == ["answer"]


async def test_a_page_of_requests_has_a_bounded_size_and_one_at_least() -> None:
    sizes = [10, 300_000, 300_000, 1_500_000, 20, 300_000, *[10] * 40]
    model = ScriptedModel(lambda request: call("keep", value=["x" * size_of(request)]))
    agent: Agent[Any, Any] = Agent("teller", model, tools=[keep])
    async with Outlast([agent], store="memory://", worker=FAST) as app:
        for size in sizes:
            await (await app.start(agent, str(size))).wait()
        caller = Scene(app, create(app)).caller()
        pages: list[list[int]] = []
        query: dict[str, Any] | None = {"limit": 40}
        while query is not None:
            page = await caller.ask("GET", "/requests", params=query)
            pages.append([len(q["action"]["args"]["value"][0]) for q in page["requests"]])
            more = page["next_cursor"]
            query = {"limit": 40, "cursor": more} if more else None

    assert pages == [sizes[:4], sizes[4:44], sizes[44:]]


def size_of(request: ModelRequest) -> int:
    last = request.view.messages[-1]
    assert isinstance(last, UserMessage)
    return int(text_of(last.content))


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@tool(approval="always")
async def keep(value: list[Any]) -> str:
    """Keep something."""
    return "kept"


async def test_no_depth_of_arguments_makes_a_page_an_error() -> None:
    model = ScriptedModel(lambda _: call("keep", value=nested(300)))
    agent: Agent[Any, Any] = Agent("teller", model, tools=[keep])
    async with Outlast([agent], store="memory://", worker=FAST, public_url=OUTSIDE) as app:
        bank = Scene(app, create(app))
        caller = bank.caller()
        body = {"agent": "teller", "message": "hello"}
        session = (await caller.ask("POST", "/sessions", 202, json=body))["session_id"]
        await bank.until(session, "message.completed")

        for path in (
            f"/sessions/{session}",
            f"/sessions/{session}/history",
            f"/streams/sessions/{session}?offset=-1",
            f"/streams/sessions/{session}?offset=-1&internals=true",
            "/requests",
            "/sessions",
            "/lanes",
        ):
            assert (await caller.get(f"/v1{path}")).status_code == 200, path
        bank.api.state.backend.feeds.close()


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 944, 968, 5000, 100_000])
def test_a_stored_value_of_any_depth_is_shown_as_its_text(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        assert value_or_text(text) == text
    assert value_or_text("[" * MAX_DEPTH + "]" * MAX_DEPTH) == nested(MAX_DEPTH)
