from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from outlast.core import message as m
from outlast.core.instant import date_of
from outlast.errors import InvalidMessage
from outlast.server.model.message import Message, history_message, said
from outlast.server.model.shape import rfc3339_or_none

MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)


def test_history_leaves_out_what_only_the_provider_understands() -> None:
    parts = (
        m.Text("hello", extra='{"signature": 1}'),
        m.ProviderPart("openai", "1", "abc", b"bytes"),
        m.ToolCall("t1.s1.c1", "look", "{}", provider_id="call_9", extra="{}"),
    )
    answer = history_message(m.ModelAnswer(parts)).model_dump(exclude_none=True)
    result = m.ToolOutput("t1.s1.c1", "look", "seen", provider_id="call_9")
    results = history_message(m.ToolOutputs((result,))).model_dump(exclude_none=True)

    assert answer["parts"] == [
        {"kind": "text", "text": "hello"},
        {"kind": "tool_call", "call_id": "t1.s1.c1", "tool": "look", "args": "{}"},
    ]
    [told] = results["results"]
    assert set(told) == {"type", "call_id", "tool", "text"}


def test_what_is_left_of_a_history_is_read_back_as_it_is_embedded() -> None:
    messages: list[m.Message] = [
        m.UserMessage((m.Text("a"), m.Image(b"hi"), m.File(url="https://a.example", name="b"))),
        m.ModelAnswer((m.Text("b"), m.Reasoning("c")), aborted=True),
        m.ToolOutputs((m.ToolOutput("c", "t", "x", failed=True),)),
    ]

    told = [history_message(message).model_dump(exclude_none=True) for message in messages]

    assert msgspec.convert(told, list[m.Message]) == messages


def test_a_message_becomes_what_the_app_takes() -> None:
    given = ["a", {"kind": "image", "data": "aGk="}, {"kind": "file", "url": "u", "name": "n"}]

    assert said(MESSAGE.validate_python(given)) == [
        "a",
        m.Image(b"hi"),
        m.File(url="u", name="n"),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        [],
        [""],
        [None],
        17,
        {"kind": "text", "text": "a"},
        [{"kind": "text", "text": ""}],
        [{"kind": "video", "url": "u"}],
        [{"kind": "image", "data": "a"}],
        [{"kind": "image", "data": "aGk=\n"}],
        [{"kind": "image", "url": "u", "size": 1}],
    ],
)
def test_what_is_no_message_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        MESSAGE.validate_python(wrong)


@pytest.mark.parametrize("part", [{}, {"data": "aGk=", "url": "u"}])
def test_a_part_has_either_bytes_or_an_address(part: dict[str, str]) -> None:
    with pytest.raises(InvalidMessage, match="either"):
        said(MESSAGE.validate_python([{"kind": "image", **part}]))


@given(st.binary(min_size=1, max_size=100))
def test_bytes_come_through(data: bytes) -> None:
    encoded = msgspec.to_builtins(data)

    assert said(MESSAGE.validate_python([{"kind": "image", "data": encoded}])) == [m.Image(data)]


def test_instants_have_milliseconds_and_are_in_utc() -> None:
    vienna = datetime.fromisoformat("2026-01-01T00:59:59.007123+01:00")

    assert rfc3339_or_none(date_of(0)) == "1970-01-01T00:00:00.000Z"
    assert rfc3339_or_none(vienna) == "2025-12-31T23:59:59.007Z"
    assert rfc3339_or_none(None) is None
