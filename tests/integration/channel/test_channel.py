"""Channels by themselves: what is verified, what is read, what is said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from outlast import Agent, Event, Outlast, Token
from outlast.core.instant import date_of
from outlast.core.message import File, Image, Text
from outlast.errors import (
    AddressRefused,
    InvalidDefinition,
    InvalidMessage,
    InvalidName,
    InvalidSignature,
    OutlastError,
)
from outlast.integration.channel import (
    Inbound,
    InboundAnswer,
    InboundRequest,
    Outgoing,
    SignedWebhookChannel,
)
from outlast.integration.channel.outgoing import compose
from outlast.integration.outbox import sign
from outlast.store import SessionInfo
from outlast.testing.scripted import ScriptedModel, say

SECRET = "a secret of the desk's"
URL = "https://desk.example/in"
NOW = 1_800_000_000
POET: Agent[Any, Any] = Agent("poet", ScriptedModel([say("A poem.")]))


def desk(**options: Any) -> SignedWebhookChannel:
    return SignedWebhookChannel("desk", POET, SECRET, URL, **options)


def posted(body: Any, secret: str = SECRET, at: int = NOW, name: str = "msg_1") -> InboundRequest:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return InboundRequest(headers=sign(secret, raw, at, name), body=raw, at=date_of(NOW * 1000))


def test_what_is_signed_with_the_secret_is_verified() -> None:
    desk().verify(posted({"thread": "7", "text": "hello"}))


@pytest.mark.parametrize(
    "request_",
    [
        posted({"thread": "7"}, secret="another secret altogether"),
        posted({"thread": "7"}, at=NOW - 301),
        posted({"thread": "7"}, at=NOW + 301),
        InboundRequest(headers={}, body=b"{}", at=date_of(NOW * 1000)),
        msgspec.structs.replace(posted({"thread": "7"}), body=b'{"thread":"8"}'),
    ],
    ids=["another secret", "old", "from the future", "unsigned", "changed"],
)
def test_what_is_not_or_is_too_old_is_refused(request_: InboundRequest) -> None:
    with pytest.raises(InvalidSignature):
        desk().verify(request_)


def test_a_secret_is_changed_by_taking_both_for_a_while() -> None:
    both = SignedWebhookChannel("desk", POET, [SECRET, "the one of tomorrow"], URL)
    both.verify(posted({}, secret="the one of tomorrow"))
    both.verify(posted({}))


def test_a_text_is_a_message_of_its_thread() -> None:
    found = desk().read(posted({"thread": "7", "text": "hello", "user": "ada"}))
    assert found == Inbound(id="msg_1", thread="7", message="hello", principal="ada")


def test_parts_are_a_message_and_carry_nothing_that_is_for_providers() -> None:
    parts = [
        {"kind": "text", "text": "look", "extra": '{"cache": true}'},
        {"kind": "image", "data": "aGk="},
        {"kind": "file", "url": "https://files.example/1", "name": "a.pdf"},
    ]
    found = desk().read(posted({"thread": "7", "parts": parts}))
    assert found.message == (
        Text("look"),
        Image(b"hi"),
        File(url="https://files.example/1", name="a.pdf"),
    )


def test_a_reply_says_which_request_it_answers() -> None:
    reply = {"request_id": "req_1", "option": "approve", "args": {"cents": 3}}
    found = desk().read(posted({"thread": "7", "reply": reply, "user": "ada"}))
    assert found.reply == InboundAnswer(request_id="req_1", option="approve", args={"cents": 3})
    assert found.message is None


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"[]",
        {"text": "hello"},
        {"thread": "7"},
        {"thread": 7, "text": "hello"},
        {"thread": "7", "text": "yes", "reply": {"request_id": "req_1", "option": "approve"}},
        {"thread": "7", "text": "a", "parts": [{"kind": "text", "text": "b"}]},
        {"thread": "7", "parts": [{"kind": "image"}]},
        {"thread": "7", "parts": [{"kind": "reasoning", "text": "hm"}]},
        {"thread": "7", "reply": {"option": "approve"}},
    ],
)
def test_what_means_nothing_or_two_things_is_refused(body: Any) -> None:
    with pytest.raises(InvalidMessage):
        desk().read(posted(body))


def test_what_the_channel_itself_has_sent_is_no_message() -> None:
    with pytest.raises(InvalidMessage, match="itself"):
        desk().read(posted({"thread": "7", "text": "A poem.", "session_id": "ses_1"}))


def test_a_thread_has_a_token_that_nobody_else_can_have() -> None:
    one, other = desk(), SignedWebhookChannel("desk-2", POET, SECRET, URL)
    token = one.token("room:7")
    assert one.thread(token) == "room:7"
    assert other.thread(token) is None
    assert one.thread("agent:poet:7") is None
    with pytest.raises(InvalidName):
        one.token("x" * 256)
    with pytest.raises(InvalidName):
        one.token("")


async def test_a_token_of_a_channel_is_the_channels_own() -> None:
    channel = desk()
    async with Outlast([POET], store="memory://", worker=None, channels=[channel]) as app:
        with pytest.raises(InvalidName, match="channel's own"):
            await app.send(Token(channel.token("7"), POET), "hello")
        with pytest.raises(InvalidName, match="channel's own"):
            await app.start(POET, "hello", continuation_token=channel.token("7"))
        assert await app.sessions() == []


@pytest.mark.parametrize(
    ("channels", "problem"),
    [
        ([desk(), desk()], "two channels"),
        ([SignedWebhookChannel("desk", "painter", SECRET, URL)], "painter"),
        (["desk"], "not a Channel"),
    ],
)
def test_channels_that_cannot_work_are_refused_where_the_app_is_made(
    channels: Any, problem: str
) -> None:
    with pytest.raises(InvalidDefinition, match=problem):
        Outlast([POET], store="memory://", channels=channels)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"name": "a:b"}, InvalidDefinition),
        ({"secret": ()}, InvalidDefinition),
        ({"secret": "short"}, InvalidDefinition),
        ({"send_url": "http://127.0.0.1/in"}, AddressRefused),
        ({"events": ["turn.done"]}, InvalidDefinition),
    ],
)
def test_a_channel_that_cannot_work_is_refused(change: Any, kind: type[OutlastError]) -> None:
    given = {"name": "desk", "agent": POET, "secret": SECRET, "send_url": URL, **change}
    with pytest.raises(kind) as found:
        SignedWebhookChannel(**given)
    assert "short" not in found.value.message


def told(kind: str, data: dict[str, Any], output: Any = None) -> Outgoing:
    event = Event(
        offset=5, type=kind, at=datetime.now(UTC), lane="main", data=data, version=1, call_id="c"
    )
    info = SessionInfo(
        session_id="ses_1", tenant="t", agent="poet", mode="", status="", token="",  # type: ignore[arg-type]
        created_at=date_of(0), updated_at=date_of(0), end=5, over="", lanes=(),
    )  # fmt: skip
    return compose(event, info, output, date_of(NOW * 1000))


def test_an_answer_is_its_text_or_its_value_as_json() -> None:
    assert told("turn.completed", {}, "A poem.").text == "A poem."
    assert told("turn.completed", {}, {"lines": 2}).text == '{"lines":2}'
    assert told("turn.completed", {}, "A poem.").id == "ses_1-5"


def test_a_question_shows_the_call_that_it_is_about_with_all_its_arguments() -> None:
    data = {
        "request_id": "req_1",
        "kind": "approval",
        "prompt": "May refund run?",
        "options": [{"id": "approve", "label": "Approve"}],
        "tool": "refund",
        "args": {"order": 17, "note": "as agreed"},
    }
    asks = told("request.opened", data)
    assert asks.text == 'May refund run? refund(order=17, note="as agreed")'
    assert asks.request is not None
    assert [option.id for option in asks.request.options] == ["approve"]
    assert told("request.opened", {**data, "args": {}}).text == "May refund run? refund()"
    assert told("request.opened", {**data, "args": ""}).text == "May refund run?"


def test_a_failure_says_what_failed() -> None:
    error = {"code": "SCRIPTED", "message": "the shop is closed"}
    assert "the shop is closed (SCRIPTED)" in told("turn.failed", {"error": error}).text


def test_a_form_is_read_as_its_fields() -> None:
    headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
    request = InboundRequest(headers=headers, body=b"payload=%7B%7D&empty=", at=date_of(NOW * 1000))
    assert request.form() == {"payload": "{}", "empty": ""}


def test_words_that_look_like_a_form_are_none() -> None:
    body = b'{"text": "hello&payload=%7B%7D"}'
    headers = {"content-type": "application/json"}
    assert InboundRequest(headers=headers, body=body, at=date_of(NOW * 1000)).form() == {}
    assert InboundRequest(headers={}, body=body, at=date_of(NOW * 1000)).form() == {}
