"""A provider on loopback: a real HTTP server that answers from a script.

It speaks OpenAI's Chat Completions and Responses and Anthropic's Messages, streamed or
not, whichever a request asks for. Point a client's `base_url` at it, or let
`openai_model` and `anthropic_model` do so. It makes nothing of what it is told: it
keeps the requests and gives the next answer, error or broken connection of its script.

    async with WireServer(reply(words("Hel", "lo")), ErrorStatus(503)) as server:
        model = openai_model(server)

It can also be away for a while, in any of the ways in which providers are:

    await server.go_away(ErrorStatus(429, headers={"Retry-After": "30"}))
    await server.come_back()
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.testing.provider_wire import PROTOCOLS, WireReply, call, reply, thoughts, words

if TYPE_CHECKING:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel

from outlast.testing.provider_wire import WirePiece

__all__ = [
    "ConnectionReset",
    "ConnectionsRefused",
    "ErrorStatus",
    "NoAnswer",
    "ReceivedCall",
    "StreamsCut",
    "WirePiece",
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


class ConnectionsRefused(Struct, frozen=True):
    """The server is down: it refuses connections, and answers under way are cut off."""


class NoAnswer(Struct, frozen=True):
    """Silence: the request is taken, and nothing comes of it until the client hangs up."""


class StreamsCut(Struct, frozen=True):
    """The answers of the script, of which each stream is reset after half of its events."""


class ReceivedCall(Struct, frozen=True):
    """A request as it came over the wire, when, and whether the provider was away then.

    `hung_up` is set if the client left during the answer. `at` is the machine's time in seconds.
    """

    path: str
    headers: Mapping[str, str]
    raw: bytes
    hung_up: asyncio.Event
    at: float = 0.0
    while_away: bool = False

    @property
    def body(self) -> Any:
        return msgspec.json.decode(self.raw)


Scripted = WireReply | ErrorStatus | ConnectionReset | NoAnswer
WireOutage = ErrorStatus | ConnectionReset | NoAnswer | ConnectionsRefused | StreamsCut
"""How a provider can be away."""
OVER = ErrorStatus(500, "the script is over: one more request came than it has answers")


class WireServer:
    """Answers one request after the other from its script, each on a connection of its own.

    When the script is over, `otherwise` says what a request is answered with.
    """

    def __init__(
        self, *script: Scripted, otherwise: Callable[[ReceivedCall], Scripted] = lambda _: OVER
    ) -> None:
        self.requests: list[ReceivedCall] = []
        self._script = list(script)
        self._otherwise = otherwise
        self._outage: WireOutage | None = None
        self._server: asyncio.Server | None = None
        self._port: socket.socket | None = None
        self._open: set[asyncio.StreamWriter] = set()

    def add(self, *script: Scripted) -> None:
        """Answer these too, after what is in the script already."""
        self._script.extend(script)

    async def __aenter__(self) -> Self:
        # Bound for as long as this is open, and never listening: while the server is down, no
        # other process can be given its port.
        self._port = bound(0)
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()
        assert self._port is not None
        self._port.close()

    @property
    def url(self) -> str:
        """Where it listens, to be used as a provider's base URL."""
        assert self._port is not None
        return f"http://127.0.0.1:{self._port.getsockname()[1]}"

    async def go_away(self, how: WireOutage) -> None:
        """Meet every request so, until `come_back`; the script stays where it is."""
        self._outage = how
        if isinstance(how, ConnectionsRefused):
            await self._close()
            for writer in self._open:
                reset(writer)

    async def come_back(self) -> None:
        """Answer again."""
        self._outage = None
        if self._server is None:
            await self._listen()

    async def _listen(self) -> None:
        assert self._port is not None
        sock = bound(self._port.getsockname()[1])
        self._server = await asyncio.start_server(self._serve, sock=sock)

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server:
            server.close()
            if not self._outage:  # one that is down has no time for goodbyes
                await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            away = self._outage is not None
            received = replace(await receive(reader), at=time.time(), while_away=away)
            self.requests.append(received)
            await respond(self._answer_to(received), received, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away; what it sent before is in `requests`
        finally:
            self._open.discard(writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def _answer_to(self, received: ReceivedCall) -> Scripted:
        match self._outage:
            case None | StreamsCut() | ConnectionsRefused():
                answer = self._script.pop(0) if self._script else self._otherwise(received)
                cuts = isinstance(self._outage, StreamsCut)
                return in_half(answer, received) if cuts else answer
            case outage:
                return outage


def bound(port: int) -> socket.socket:
    """Return a socket at a port of loopback, which others of this process may have too."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock


def in_half(answer: Scripted, received: ReceivedCall) -> Scripted:
    """Return an answer that is cut off after half of its events."""
    protocol = PROTOCOLS.get(received.path)
    if not isinstance(answer, WireReply) or protocol is None:
        return answer
    return replace(answer, cut=len([*protocol.events(answer)]) // 2)


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
        case NoAnswer():
            await reader.read()
            received.hung_up.set()
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


def openai_model(server: WireServer | str, name: str = "gpt-wire") -> OpenAIChatModel:
    """Return a pydantic-ai model that speaks Chat Completions to the server, or to one at a URL."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    url = server if isinstance(server, str) else server.url
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key=KEY)
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
