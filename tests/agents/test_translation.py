"""Messages to pydantic-ai and back, without a wire."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from known import known_as
from msgspec.structs import replace
from pydantic_ai import messages as ai

from outlast.agents.model.client import AnswerCutOff, ReasoningPiece, TextPiece, ToolCallPiece
from outlast.agents.model.pydantic_ai import ProviderModel, history, library, translate
from outlast.agents.model.translation import StreamTranslator, read_parts
from outlast.core.message import (
    File,
    Image,
    Message,
    ModelAnswer,
    Part,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    ToolOutput,
    ToolOutputs,
    UserMessage,
)
from outlast.core.view import View
from outlast.errors import InvalidDefinition, StoreCorrupt, StoreFromTheFuture

GOLDEN = Path(__file__).parents[1] / "migrations" / "golden"

PARTS: dict[str, Any] = {
    "text": ai.TextPart("Hello", id="msg_1", provider_name="openai"),
    "text with citations": ai.TextPart(
        "See [1].", citations=[ai.Citation([ai.WebCitationSource("https://example.com")])]
    ),
    "thinking": ai.ThinkingPart("Hm", signature="sig==", provider_name="anthropic"),
    "hidden thinking": ai.ThinkingPart(
        "", id="redacted_thinking", signature="x", provider_name="a"
    ),
    "tool call": ai.ToolCallPart(
        "add", '{"a":1}', "call_1", id="fc_1", provider_name="google", provider_details={"s": "t"}
    ),
    "native tool call": ai.NativeToolCallPart("web_search", {"query": "x"}, "srv_1"),
    "native tool return": ai.NativeToolReturnPart("web_search", [{"url": "x"}], "srv_1"),
    "file": ai.FilePart(ai.BinaryImage(b"\x89PNG\x00\xff\xfe", media_type="image/png")),
    "compaction": ai.CompactionPart(content="So far: nothing.", provider_name="anthropic"),
}


def written(*parts: Any, **origin: Any) -> tuple[Part, ...]:
    (plain,) = library().adapter.dump_python([ai.ModelResponse(list(parts), **origin)], mode="json")
    return read_parts(plain, library().version)


def translated(*parts: Part) -> ai.ModelResponse:
    message = translate(ModelAnswer(parts))
    assert isinstance(message, ai.ModelResponse)
    return message


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_a_part_comes_back_as_it_was(part: Any) -> None:
    assert list(translated(*written(part)).parts) == [part]


def test_parts_of_kinds_unknown_to_us_are_foreign() -> None:
    names = [name for name, part in PARTS.items() if isinstance(written(part)[0], ProviderPart)]
    assert names == ["native tool call", "native tool return", "file", "compaction"]


def test_plain_text_is_stored_without_anything_beside_it() -> None:
    assert written(ai.TextPart("Hello"), provider_name="openai", provider_url="https://x") == (
        Text("Hello"),
    )


def test_where_an_answer_came_from_is_kept_once_and_only_where_it_matters() -> None:
    origin = {"provider_name": "azure", "provider_url": "https://x", "canonical_system": "openai"}
    signed = ai.ThinkingPart("Hm", signature="sig", provider_name="azure")
    parts = written(PARTS["file"], signed, ai.TextPart("Hi"), **origin)
    assert [getattr(part, "extra", "").count("canonical_system") for part in parts] == [0, 1, 0]
    message = translated(*parts)
    assert (message.provider_name, message.provider_url) == ("azure", "https://x")
    assert message.canonical_system == "openai"


def test_arguments_become_text_and_stay_what_they_were() -> None:
    spaced = written(ai.ToolCallPart("add", '{"a" : 1}', "call_1"))[0]
    parsed = written(ai.ToolCallPart("add", {"b": 1, "a": [2]}, "call_1"))[0]
    absent = written(ai.ToolCallPart("add", None, "call_1"))[0]
    calls = [part for part in (spaced, parsed, absent) if isinstance(part, ToolCall)]
    assert [call.args for call in calls] == ['{"a" : 1}', '{"b":1,"a":[2]}', "{}"]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (Text("Hi"), "Hi"),
        (Image(data=b"\x00\xff"), ai.BinaryImage(b"\x00\xff", media_type="image/png")),
        (Image(url="https://x/a.png"), ai.ImageUrl("https://x/a.png")),
        (
            Image(url="https://x/a", media_type="image/webp"),
            ai.ImageUrl("https://x/a", media_type="image/webp"),
        ),
        (
            File(data=b"%PDF", media_type="application/pdf"),
            ai.BinaryContent(b"%PDF", media_type="application/pdf"),
        ),
        (
            File(url="https://x/a", media_type="application/pdf"),
            ai.DocumentUrl("https://x/a", media_type="application/pdf"),
        ),
        (
            File(url="https://x/a", media_type="audio/mpeg"),
            ai.AudioUrl("https://x/a", media_type="audio/mpeg"),
        ),
        (
            File(url="https://x/a", media_type="video/mp4"),
            ai.VideoUrl("https://x/a", media_type="video/mp4"),
        ),
    ],
)
def test_what_a_person_says_is_one_prompt(part: Any, expected: Any) -> None:
    message = translate(UserMessage((Text("Look:"), part)))
    (prompt,) = message.parts
    assert isinstance(prompt, ai.UserPromptPart)
    assert list(prompt.content) == ["Look:", expected]
    if not isinstance(expected, str):
        assert prompt.content[1].media_type == expected.media_type  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["3", '{"kind": "binary", "data": "x"}', "", "null"])
def test_a_result_is_the_text_that_it_was(text: str) -> None:
    message = translate(ToolOutputs((ToolOutput("call_1", "add", text),)))
    (part,) = message.parts
    assert isinstance(part, ai.ToolReturnPart)
    assert (part.content, part.outcome, part.tool_call_id) == (text, "success", "call_1")


def test_every_message_becomes_one_message() -> None:
    view = View()
    view.messages += [
        UserMessage((Text("One"),)),
        UserMessage((Text("Two"),)),
        ModelAnswer((Text("Half an ans"),), aborted=True),
        UserMessage((Text("Go on"),)),
        ModelAnswer((ToolCall("c", "add", "{}"), ToolCall("d", "add", "{}"))),
        ToolOutputs((ToolOutput("c", "add", "1"), ToolOutput("d", "add", "2", failed=True))),
    ]
    kinds = [message.kind for message in history(view)]
    assert kinds == ["request", "request", "response", "request", "response", "request"]


FOREIGN = written(PARTS["native tool call"])[0]
assert isinstance(FOREIGN, ProviderPart)


def test_a_foreign_part_that_was_changed_is_refused() -> None:
    part = known_as(ProviderPart, FOREIGN)
    broken = replace(part, data=part.data.replace(b"web", b"net"))
    with pytest.raises(StoreCorrupt):
        translate(ModelAnswer((broken,)))


def test_a_foreign_part_of_a_kind_yet_to_come_asks_for_an_upgrade() -> None:
    data = b'{"part_kind":"hologram","content":"?"}'
    future = ProviderPart("pydantic-ai", "9.1.0", sha256(data).hexdigest(), data)
    with pytest.raises(StoreFromTheFuture, match=r"9\.1\.0"):
        translate(ModelAnswer((Text("See:"), future)))


def test_a_foreign_part_of_another_client_is_refused() -> None:
    with pytest.raises(InvalidDefinition, match="homemade"):
        translate(ModelAnswer((replace(FOREIGN, codec="homemade"),)))


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("messages_*.json")), ids=lambda it: it.stem)
def test_messages_of_every_release_are_still_read(file: Path) -> None:
    messages = msgspec.json.decode(file.read_bytes(), type=list[Message])
    again = [read_back(message) for message in messages]
    assert again == messages
    rewritten = msgspec.json.format(msgspec.json.encode(messages), indent=2)
    assert rewritten + b"\n" == file.read_bytes()


def read_back(message: Message) -> Message:
    """Return an answer as it reads once it has been pydantic-ai's; others are not read from it."""
    there = translate(message)
    if not isinstance(message, ModelAnswer):
        return message
    versions = [part.version for part in message.parts if isinstance(part, ProviderPart)]
    (plain,) = library().adapter.dump_python([there], mode="json")
    parts = read_parts(plain, versions[0] if versions else "")
    return ModelAnswer(parts, aborted=message.aborted)


def test_the_golden_messages_are_all_there() -> None:
    assert [file.stem for file in GOLDEN.glob("messages_*")] == ["messages_pydantic_ai_2.66"]


def test_what_the_golden_messages_mean_has_not_changed() -> None:
    file = GOLDEN / "messages_pydantic_ai_2.66.json"
    messages = msgspec.json.decode(file.read_bytes(), type=list[Message])
    _, anthropic, openai, foreign, *_ = (translate(message) for message in messages)
    assert [type(part).__name__ for part in foreign.parts] == [
        "NativeToolCallPart",
        "NativeToolReturnPart",
        "FilePart",
        "CompactionPart",
        "TextPart",
    ]
    assert foreign.parts[2].content.data == b"\x89PNG\x00\xff"  # type: ignore[union-attr]
    assert anthropic.parts[0].signature == "EqQBCgIYAhIM+/=="  # type: ignore[union-attr]
    assert openai.parts[0].id == "rs_1"  # type: ignore[union-attr]
    assert openai.provider_url == "https://api.openai.com/v1/"  # type: ignore[union-attr]


def announced(*events: Any) -> tuple[StreamTranslator, list[Any]]:
    announcer = StreamTranslator()
    return announcer, [piece for event in events for piece in announcer.announce(event)]


def test_a_tool_call_is_announced_once() -> None:
    began = ai.PartStartEvent(index=0, part=ai.ToolCallPart("add", "", "call_1"))
    _, pieces = announced(began, began)
    assert pieces == [ToolCallPiece(0, "add")]


def test_what_the_stream_left_out_of_an_answer_is_announced_at_its_end() -> None:
    announcer, _ = announced(ai.PartStartEvent(index=1, part=ai.TextPart("Hel")))
    rest = list(announcer.complete([Reasoning("Hm"), Text("Hello")]))
    assert rest == [ReasoningPiece(0, "Hm"), TextPiece(1, "lo")]


@pytest.mark.parametrize(
    "parts", [(), (Text("Goodbye"),), (ToolCall("", "add", "{}"),)], ids=["none", "other", "call"]
)
def test_an_answer_that_is_not_what_was_streamed_is_refused(parts: tuple[Part, ...]) -> None:
    announcer, _ = announced(ai.PartStartEvent(index=0, part=ai.TextPart("Hel")))
    with pytest.raises(AnswerCutOff):
        list(announcer.complete(parts))


def test_a_tool_call_that_vanished_from_the_answer_is_refused() -> None:
    began = ai.PartStartEvent(index=1, part=ai.ToolCallPart("add", "", "call_1"))
    announcer, _ = announced(began)
    with pytest.raises(AnswerCutOff):
        list(announcer.complete([Text("Hi")]))


def test_a_model_goes_by_the_name_that_it_was_given() -> None:
    from pydantic_ai.models.test import TestModel

    assert ProviderModel("openai:gpt-5.2").name == "openai:gpt-5.2"
    assert ProviderModel(TestModel(model_name="scripted")).name == "test:scripted"
