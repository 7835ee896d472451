"""The providers' protocols, from their side: an answer as events of a stream or as one body.

OpenAI's Chat Completions and Responses, and Anthropic's Messages; as much of each as a
client needs. Pure: what is done with the bytes is `outlast.testing.provider_server`'s.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

Json = dict[str, Any]


class WirePiece(Struct, frozen=True):
    """A part of an answer, in the chunks in which it is streamed."""

    kind: Literal["words", "thoughts", "call"]
    chunks: tuple[str, ...]
    tool: str = ""
    id: str = ""
    signature: str = ""

    @property
    def whole(self) -> str:
        return "".join(self.chunks)


class WireReply(Struct, frozen=True):
    """A whole answer, and what befalls it on the way.

    `hold` waits after so many events until the gate is opened or the client hangs up. `cut` ends
    the stream after so many: `quietly` as if it were over, or else by resetting the connection.
    """

    pieces: tuple[WirePiece, ...]
    input_tokens: int = 11
    output_tokens: int = 7
    cached_tokens: int = 0
    stop: str = ""
    hold: int | None = None
    gate: asyncio.Event | None = None
    cut: int | None = None
    quietly: bool = False


def words(*chunks: str) -> WirePiece:
    return WirePiece("words", chunks)


def thoughts(*chunks: str, signature: str = "") -> WirePiece:
    return WirePiece("thoughts", chunks, signature=signature)


def call(tool: str, *chunks: str, id: str = "call_1") -> WirePiece:
    return WirePiece("call", chunks, tool=tool, id=id)


def reply(*pieces: WirePiece, **changes: Any) -> WireReply:
    """Return an answer made of these pieces; `changes` are fields of `WireReply`."""
    return replace(WireReply(pieces), **changes)


def event(data: Json, name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


def chat_stop(answer: WireReply) -> str:
    calls = any(piece.kind == "call" for piece in answer.pieces)
    return answer.stop or ("tool_calls" if calls else "stop")


def chat_usage(answer: WireReply) -> Json:
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": answer.input_tokens + answer.output_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
    }


def chat_events(answer: WireReply) -> Iterator[bytes]:
    """Give the events of Chat Completions."""

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return event({**head, "choices": [choice]})

    head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "wire"}
    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for piece in answer.pieces:
        if piece.kind == "call":
            function = {"name": piece.tool, "arguments": ""}
            begun = {"id": piece.id, "type": "function", "index": calls, "function": function}
            yield chunk({"tool_calls": [begun]})
        for text in piece.chunks:
            match piece.kind:
                case "words":
                    yield chunk({"content": text})
                case "thoughts":
                    yield chunk({"reasoning_content": text})
                case "call":
                    yield chunk({"tool_calls": [{"index": calls, "function": {"arguments": text}}]})
        calls += piece.kind == "call"
    yield chunk({}, chat_stop(answer))
    yield event({**head, "choices": [], "usage": chat_usage(answer)})
    yield b"data: [DONE]\n\n"


def chat_body(answer: WireReply) -> Json:
    def of(kind: str) -> Iterator[WirePiece]:
        return (piece for piece in answer.pieces if piece.kind == kind)

    message: Json = {"role": "assistant", "content": "".join(p.whole for p in of("words")) or None}
    if thought := "".join(piece.whole for piece in of("thoughts")):
        message["reasoning_content"] = thought
    if any(of("call")):
        message["tool_calls"] = [
            {
                "id": piece.id,
                "type": "function",
                "function": {"name": piece.tool, "arguments": piece.whole},
            }
            for piece in of("call")
        ]
    return {
        "id": "chat_1",
        "object": "chat.completion",
        "created": 1,
        "model": "wire",
        "choices": [{"index": 0, "message": message, "finish_reason": chat_stop(answer)}],
        "usage": chat_usage(answer),
    }


def anthropic_usage(answer: WireReply) -> Json:
    return {
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "cache_read_input_tokens": answer.cached_tokens,
        "cache_creation_input_tokens": 0,
    }


def anthropic_stop(answer: WireReply) -> str:
    calls = any(piece.kind == "call" for piece in answer.pieces)
    return answer.stop or ("tool_use" if calls else "end_turn")


def anthropic_block(piece: WirePiece, begun: bool) -> Json:
    """Return a content block: whole, or as it looks when it begins."""
    text = "" if begun else piece.whole
    match piece.kind:
        case "words":
            return {"type": "text", "text": text}
        case "thoughts":
            signature = "" if begun else piece.signature
            return {"type": "thinking", "thinking": text, "signature": signature}
        case "call":
            args = msgspec.json.decode(text) if text else {}
            return {"type": "tool_use", "id": piece.id, "name": piece.tool, "input": args}


def anthropic_body(answer: WireReply) -> Json:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "wire",
        "content": [anthropic_block(piece, begun=False) for piece in answer.pieces],
        "stop_reason": anthropic_stop(answer),
        "stop_sequence": None,
        "usage": anthropic_usage(answer),
    }


def anthropic_events(answer: WireReply) -> Iterator[bytes]:
    """Give the events of Messages."""

    def named(name: str, **data: Any) -> bytes:
        return event({"type": name, **data}, name)

    def delta(index: int, kind: str, field: str, text: str) -> bytes:
        return named("content_block_delta", index=index, delta={"type": kind, field: text})

    started = anthropic_body(answer) | {"content": [], "stop_reason": None}
    started["usage"] = anthropic_usage(answer) | {"output_tokens": 1}
    yield named("message_start", message=started)
    fields = {
        "words": ("text_delta", "text"),
        "thoughts": ("thinking_delta", "thinking"),
        "call": ("input_json_delta", "partial_json"),
    }
    for index, piece in enumerate(answer.pieces):
        yield named(
            "content_block_start", index=index, content_block=anthropic_block(piece, begun=True)
        )
        for text in piece.chunks:
            yield delta(index, *fields[piece.kind], text)
        if piece.signature:
            yield delta(index, "signature_delta", "signature", piece.signature)
        yield named("content_block_stop", index=index)
    ended = {"stop_reason": anthropic_stop(answer), "stop_sequence": None}
    yield named("message_delta", delta=ended, usage={"output_tokens": answer.output_tokens})
    yield named("message_stop")


def responses_item(index: int, piece: WirePiece) -> Json:
    item: Json = {"id": f"item_{index}", "status": "completed"}
    match piece.kind:
        case "words":
            text = {"type": "output_text", "text": piece.whole, "annotations": [], "logprobs": []}
            item |= {"type": "message", "role": "assistant", "content": [text]}
        case "thoughts":
            summary = {"type": "summary_text", "text": piece.whole}
            item |= {"type": "reasoning", "summary": [summary]}
            if piece.signature:
                item["encrypted_content"] = piece.signature
        case "call":
            item |= {"type": "function_call", "call_id": piece.id, "name": piece.tool}
            item["arguments"] = piece.whole
    return item


def responses_body(answer: WireReply) -> Json:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "wire",
        "status": "completed",
        "output": [responses_item(index, piece) for index, piece in enumerate(answer.pieces)],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": answer.input_tokens,
            "input_tokens_details": {"cached_tokens": answer.cached_tokens},
            "output_tokens": answer.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.input_tokens + answer.output_tokens,
        },
    }


def responses_events(answer: WireReply) -> Iterator[bytes]:
    """Give the events of Responses."""
    number = iter(range(1_000_000))

    def named(name: str, **data: Any) -> bytes:
        return event({"type": name, "sequence_number": next(number), **data}, name)

    deltas: dict[str, tuple[str, Json]] = {
        "words": ("response.output_text.delta", {"content_index": 0, "logprobs": []}),
        "thoughts": ("response.reasoning_summary_text.delta", {"summary_index": 0}),
        "call": ("response.function_call_arguments.delta", {}),
    }
    begun: Json = {"status": "in_progress", "output": [], "usage": None}
    yield named("response.created", response=responses_body(answer) | begun)
    for index, piece in enumerate(answer.pieces):
        place = {"output_index": index, "item_id": f"item_{index}"}
        item = responses_item(index, replace(piece, chunks=(), signature=""))
        item |= {"content": []} if piece.kind == "words" else {}
        item |= {"summary": []} if piece.kind == "thoughts" else {}
        yield named("response.output_item.added", output_index=index, item=item)
        if piece.kind == "thoughts":
            part = {"summary_index": 0, "part": {"type": "summary_text", "text": ""}}
            yield named("response.reasoning_summary_part.added", **place, **part)
        name, fields = deltas[piece.kind]
        for text in piece.chunks:
            yield named(name, **place, **fields, delta=text)
        done = responses_item(index, piece)
        yield named("response.output_item.done", output_index=index, item=done)
    yield named("response.completed", response=responses_body(answer))


class WireProtocol(Struct, frozen=True):
    events: Callable[[WireReply], Iterator[bytes]]
    body: Callable[[WireReply], Json]


PROTOCOLS = {
    "/v1/chat/completions": WireProtocol(chat_events, chat_body),
    "/v1/messages": WireProtocol(anthropic_events, anthropic_body),
    "/v1/responses": WireProtocol(responses_events, responses_body),
}
