"""Arguments are one JSON for everybody: what some reader of them could not read is refused."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic import BaseModel
from scene import Watched, results_of, running, the

from outlast import Agent, ModelOptions, Outlast, tool
from outlast.agents.model.client import FinishedAnswer, ModelRequest
from outlast.agents.runtime.json_value import from_json, to_json
from outlast.clock import Clock
from outlast.core.json_text import MAX_DEPTH
from outlast.core.message import ToolCall
from outlast.errors import InvalidAnswer, InvalidInput, NotEncodable, StoreCorrupt
from outlast.session.inbox import callback_value
from outlast.session.request import request_of
from outlast.store import RequestInfo, Store
from outlast.stores.sqlite import MemoryStore
from outlast.stores.url import open_store
from outlast.testing.contract.builder import enlist, park, question, write
from outlast.testing.scripted import ScriptedModel, call, say

TOO_DEEP = "[" * MAX_DEPTH + "]" * MAX_DEPTH
"""As a value in an object, one deeper than may be."""


class Saying(ScriptedModel):
    """A model that gives arguments as a text of the test's own."""

    def __init__(self, args: str) -> None:
        super().__init__([call("pay"), say("done")])
        self._args = args

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        answer = await super().request(request)
        parts = tuple(
            replace(part, args=self._args) if isinstance(part, ToolCall) else part
            for part in answer.parts
        )
        return replace(answer, parts=parts)


def agent_saying(args: str, pay: Any) -> Agent[Any, Any]:
    return Agent("a", Saying(args), tools=[pay], model_options=ModelOptions(stream=False))


class Amount(BaseModel):
    euros: float


@dataclass
class Transfer:
    amounts: list[Amount]


@pytest.mark.parametrize(
    "args",
    [
        '{"euros": NaN}',
        '{"euros": "NaN"}',
        '{"euros": Infinity}',
        '{"euros": "-Infinity"}',
        '{"euros": 1e999}',
        '{"euros": 1, "note": NaN}',
        '{"euros": 1, "note": {"deep": [1e999]}}',
        f'{{"euros": 1, "note": {TOO_DEEP}}}',
        '{"euros": 1, "transfer": {"amounts": [{"euros": "NaN"}]}}',
        '{"euros": 1, "euros": 2000}',
        f'{{"euros": 1{"0" * 400}}}',
        f'{{"euros": 1, "note": 1{"0" * 400}}}',
        f'{{"euros": 1, "note": [{{"deep": {2**64}}}]}}',
        f'{{"euros": 1, "transfer": {{"amounts": [{{"euros": "1{"0" * 400}"}}]}}}}',
    ],
)
async def test_arguments_that_somebody_could_not_read_are_told_to_the_model(args: str) -> None:
    paid: list[float] = []

    @tool(approval=lambda args: args["euros"] > 1000)
    async def pay(euros: float, note: Any = None, transfer: Transfer | None = None) -> str:
        paid.append(euros)
        return "paid"

    async with running(agent_saying(args, pay)) as app:
        session = await app.start("a", "go")
        result = await session.wait()

        assert result.output == "done"
        assert paid == []
        [failed] = await the(session, "tool.failed")
        assert failed.data["error"]["code"] == "RETRY"
        assert await results_of(session) != ["paid"]
        assert await app.requests() == ()


async def test_arguments_as_deep_as_may_be_are_taken() -> None:
    args = f'{{"note": {TOO_DEEP[1:-1]}}}'

    @tool
    async def pay(note: Any) -> str:
        return "paid"

    async with running(agent_saying(args, pay)) as app:
        session = await app.start("a", "go")
        await session.wait()
        assert await results_of(session) == ["paid"]


@pytest.mark.parametrize("kind", ["memory", "postgres"])
@pytest.mark.parametrize("args", ['{"euros": 1e999}', '{"euros": NaN}', "[" * 10_000])
async def test_one_request_that_cannot_be_read_does_not_fail_a_list(
    args: str, kind: str, request: pytest.FixtureRequest
) -> None:
    clock = Clock()
    store: Store = MemoryStore(clock)
    if kind == "postgres":
        store = open_store(request.getfixturevalue("postgres_url"), clock)
    watched = Agent("a", Watched([]))
    async with Outlast([watched], store=store, clock=clock, worker=None) as app:
        for number in (1, 2):
            session = await app.start("a", "go")
            await enlist(store, clock, f"w{number}")
            [claim] = await store.work.claim(f"w{number}", 1)
            opened = question(f"{session.id}:t1.s1.c1.q{number}")
            bad = replace(opened, tool="pay", args=args if number == 1 else '{"euros": 1}')
            await write(store, park(claim, bad, status="waiting", worker=f"w{number}"))

        first, second = await app.requests()

        assert first.args == args
        assert "cannot be read" in first.prompt or "not JSON" in first.prompt
        assert second.args == {"euros": 1}


@pytest.mark.parametrize("row", ["{", '{"kind": 7', "[" * 100_000])
def test_a_row_that_is_no_request_is_shown_as_its_text(row: str) -> None:
    info = RequestInfo(
        request_id="req_1",
        session_id="ses_1",
        lane="main",
        kind="approval",
        state="open",
        expires_at=None,
        data=row,
    )
    shown = request_of(info)
    assert (shown.request_id, shown.kind, shown.args) == ("req_1", "approval", row)
    assert "cannot be read" in shown.prompt


def test_a_value_that_is_nested_too_deep_cannot_be_stored() -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert from_json(to_json(deep)) == deep
    with pytest.raises(NotEncodable, match="more than 100 deep"):
        to_json([deep])


def test_a_stored_value_that_is_nested_too_deep_is_said_to_be() -> None:
    with pytest.raises(StoreCorrupt, match="more than 100 deep"):
        from_json("[" * 1000 + "]" * 1000)


UNREADABLE: dict[str, Any] = {
    "an integer of 400 digits": 10**400,
    "one bit too many": 2**64,
    "one bit too many below": -(2**63) - 1,
    "deep": [{"x": [2**64]}],
    "no number": float("nan"),
    "no end": float("inf"),
}


@pytest.mark.parametrize("has_code", [True, False], ids=["by its app", "without the tool's code"])
@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
async def test_edited_arguments_that_somebody_could_not_read_are_refused(
    value: Any, has_code: bool, path: Path
) -> None:
    paid: list[Any] = []

    @tool(approval="always")
    async def pay(note: Any) -> str:
        paid.append(note)
        return "paid"

    url = f"sqlite:///{path}"
    async with running(agent_saying('{"note": 1}', pay), store=url) as app:
        session = await app.start("a", "go")
        [asked] = (await session.wait()).requests
        others = app if has_code else Outlast([], store=url, worker=None)
        async with AsyncExitStack() as stack:
            if others is not app:
                await stack.enter_async_context(others)
            there = await others.session(session.id)

            with pytest.raises((InvalidAnswer, NotEncodable), match=r"64 bits|no finite number"):
                await there.answer(asked.request_id, "approve", args={"note": value})
            await there.answer(asked.request_id, "approve", args={"note": 2**64 - 1})

        assert (await session.wait()).output == "done"
        assert paid == [2**64 - 1]


@pytest.mark.parametrize("said", ['"NaN"', "1" + "0" * 400, '"Infinity"', "1e999"])
async def test_an_answer_with_a_number_that_nobody_can_be_told_is_said_again(said: str) -> None:
    watched = Watched([say(said), say("2.5")])
    answering = Agent("a", watched, output_type=float, model_options=ModelOptions(stream=False))
    async with running(answering) as app:
        result = await (await app.start("a", "go")).wait()

        assert (result.output, len(watched.requests)) == (2.5, 2)


@pytest.mark.parametrize(
    "body",
    [
        b'{"euros": NaN}',
        b"[1e999]",
        b"[18446744073709551616]",
        b"[" * 101 + b"]" * 101,
        b'["\xff"]',
    ],
)
def test_a_callback_that_says_it_is_json_has_to_be(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="says that it is JSON"):
        callback_value(body, "application/json")
    assert callback_value(body, "text/plain")
