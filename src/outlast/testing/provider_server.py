"""A provider on loopback: a real HTTP server that answers from a script.

It speaks OpenAI's Chat Completions and Responses and Anthropic's Messages, streamed or
not, whichever a request asks for. Point a client's `base_url` at it, or let
`openai_model` and `anthropic_model` do so. It makes nothing of what it is told: it
keeps the requests and gives the next answer, error or broken connection of its script.

    async with WireServer(reply(words("Hel", "lo")), Fault(503)) as server:
        model = openai_model(server)
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from outlast.testing.provider_wire import PROTOCOLS, WireReply, call, reply, thoughts, words

if TYPE_CHECKING:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

__all__ = [
    "ConnectionReset",
    "ErrorStatus",
    "ReceivedCall",
    "WireReply",
    "WireServer",
    "anthropic_model",
    "call",
    "openai_model",
    "reply",
    "responses_model",
    "thoughts",
    "words",
]

KEY = "sk-loopback-0123456789"
"""The API key that the models built here send."""


class ErrorStatus(Struct, frozen=True):
    """An answer with an error status."""

    status: int
    message: str = "made to fail"
    headers: Mapping[str, str] = {}
    code: str = ""


class ConnectionReset(Struct, frozen=True):
    """No answer: the connection is reset once the request has arrived."""


class ReceivedCall(Struct, frozen=True):
    """A request as it came over the wire. `hung_up` is set if the client left during the answer."""

    path: str
    headers: Mapping[str, str]
    raw: bytes
    hung_up: asyncio.Event

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw)


Scripted = WireReply | ErrorStatus | ConnectionReset


class WireServer:
    """Answers one request after the other from its script, each on a connection of its own."""

    def __init__(self, *script: Scripted) -> None:
        self.requests: list[ReceivedCall] = []
        self._script = list(script)
        self._server: asyncio.Server | None = None

    def add(self, *script: Scripted) -> None:
        """Answer these too, after what is in the script already."""
        self._script.extend(script)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """Where it listens, to be used as a provider's base URL."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            received = await receive(reader)
            self.requests.append(received)
            over = ErrorStatus(500, "the script is over: one more request came than it has answers")
            await respond(self._script.pop(0) if self._script else over, received, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away; what it sent before is in `requests`
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def receive(reader: asyncio.StreamReader) -> ReceivedCall:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request, *lines = head.rstrip().split("\r\n")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    raw = await reader.readexactly(int(headers.get("content-length", 0)))
    path = request.split(" ")[1].partition("?")[0]
    return ReceivedCall(path, headers, raw, asyncio.Event())


async def respond(
    answer: Scripted,
    received: ReceivedCall,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    protocol = PROTOCOLS.get(received.path)
    match answer:
        case _ if protocol is None:
            await write_whole(writer, 404, {"error": {"message": f"no such path: {received.path}"}})
        case ConnectionReset():
            reset(writer)
        case ErrorStatus():
            error = {"message": answer.message, "type": "made_up", "code": answer.code or None}
            await write_whole(writer, answer.status, {"error": error}, answer.headers)
        case WireReply() if received.body.get("stream"):
            await stream(protocol.events(answer), answer, received, reader, writer)
        case WireReply():
            await write_whole(writer, 200, protocol.body(answer))


async def write_whole(
    writer: asyncio.StreamWriter, status: int, body: Any, headers: Mapping[str, str] | None = None
) -> None:
    data = msgspec.json.encode(body)
    size = {"Content-Type": "application/json", "Content-Length": str(len(data))}
    writer.write(heading(status, {**size, **(headers or {})}) + data)
    await writer.drain()


def heading(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def stream(
    events: Iterator[bytes],
    answer: WireReply,
    received: ReceivedCall,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Write the events one by one, until the answer says to hold or to break off."""
    kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
    writer.write(heading(200, kind))
    for number, data in enumerate(events):
        if number == answer.hold and not await released(answer.gate, reader):
            received.hung_up.set()
            return
        if number == answer.cut:
            break
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
    if answer.cut is None or answer.quietly:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    else:
        reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """Break the connection as a crashed peer does, not with the goodbye of a closed one."""
    at_once = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    writer.transport.abort()


async def released(gate: asyncio.Event | None, reader: asyncio.StreamReader) -> bool:
    """Wait until the gate opens or the client hangs up; say whether it was the gate."""
    opened = asyncio.ensure_future((gate or asyncio.Event()).wait())
    gone = asyncio.ensure_future(reader.read())
    done, waiting = await asyncio.wait((opened, gone), return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return opened in done


# Imported late: pydantic-ai takes seconds, and a server alone needs none of it.


def openai_model(server: WireServer, name: str = "gpt-wire") -> OpenAIChatModel:
    """Return a pydantic-ai model that speaks Chat Completions to the server."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY)
    return OpenAIChatModel(name, provider=provider)


def responses_model(server: WireServer, name: str = "gpt-wire") -> OpenAIResponsesModel:
    """Return a pydantic-ai model that speaks Responses to the server."""
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{server.url}/v1", api_key=KEY)
    return OpenAIResponsesModel(name, provider=provider)


def anthropic_model(server: WireServer, name: str = "claude-wire") -> AnthropicModel:
    """Return a pydantic-ai model that speaks Messages to the server."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(name, provider=AnthropicProvider(base_url=server.url, api_key=KEY))
