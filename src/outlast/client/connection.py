"""The way to one server: requests that are repeated where that is safe, and streams of lines.

Knows no route, and follows no redirect. A server is not trusted with our memory: answers and lines
have a limit, and none is taken compressed, since a few bytes could become any number. Nothing is
taken from the environment unless `trust_env` says so: a proxy that is named there would be
given the token.
"""

import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from outlast.agents.runtime.json_value import to_json
from outlast.client.error import foreign, missed_answer
from outlast.client.retry import FailedTry, RetryBudget, missed_connection
from outlast.clock import Clock
from outlast.errors import (
    InvalidInput,
    InvalidServerAnswer,
    InvalidUrl,
    OutlastError,
    ServerUnavailable,
)
from outlast.net import trace_context
from outlast.net.address import check_parts

TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""The characters of a bearer token, by RFC 6750."""
PREFIX = "/v1"
PLAIN = {"Accept-Encoding": "identity"}
NDJSON = "application/x-ndjson"
CONNECTS_WITHIN = 10.0

POOL = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=4.0)
"""A connection is let go before the server does so (after 5 seconds, uvicorn's): of what was sent
on one that is just being closed it is unknown whether it arrived."""

PERHAPS = "; it may have been done all the same: look before you try again"

Query = Mapping[str, Any]


class ServerConnection:
    """Open from `open` to `close`, and again if need be.

    `retry_timeout` is for how many seconds what fails is tried again, `stream_timeout` the same for
    what waits; None is for ever. `timeout` bounds one try, and `silence` how long a stream may
    give no sign of life before it is taken for lost. An answer, and a line of a stream, of more
    than `max_answer` bytes is refused.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        clock: Clock,
        *,
        retry_timeout: float | None,
        stream_timeout: float | None,
        timeout: float,
        silence: float,
        max_answer: int,
        trust_env: bool,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.url = url
        self.clock = clock
        self.retry_timeout = retry_timeout
        self.stream_timeout = stream_timeout
        self._timeout = timeout
        self._silence = silence
        self._most = max_answer
        self._token = token
        self._trust_env = trust_env
        self._tls = tls
        self._http: httpx.AsyncClient | None = None

    async def open(self) -> None:
        if self._http is not None:
            raise InvalidInput("this client is already open: open it once, or make another one")
        self._http = httpx.AsyncClient(
            headers=PLAIN | ({"Authorization": f"Bearer {self._token}"} if self._token else {}),
            verify=self._tls or httpx.create_ssl_context(trust_env=self._trust_env),
            trust_env=self._trust_env,
            follow_redirects=False,
            limits=POOL,
        )

    async def close(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        is_safe: bool = True,
        done: tuple[type[OutlastError], ...] = (),
        waits: float = 0.0,
    ) -> bytes:
        """Send a request until it is answered, and return the answer's body.

        A request that is not safe to send twice is repeated only where the first try did nothing
        for certain. `done` are the errors that say of a later try that an earlier one did it.
        `waits` is for how many seconds the server is asked to wait before it answers.
        """
        content = None if body is None else to_json(body).encode()
        trouble = RetryBudget(self.clock, self.stream_timeout if waits else self.retry_timeout)
        if waits:
            trouble.over()  # what the server was asked to wait for counts from when it is cut off
        perhaps_done = False
        while True:
            try:
                return await self._ask(method, path, query, content, self._timeout + waits)
            except FailedTry as caught:
                missed = caught
            if perhaps_done and isinstance(missed.error, done):
                return b""
            if not missed.is_passing:
                raise missed.error
            if not (is_safe or missed.is_undone):
                raise uncertain(missed.error)
            perhaps_done = perhaps_done or not missed.is_undone
            await trouble.bear(missed)

    async def _ask(
        self, method: str, path: str, query: Query | None, content: bytes | None, seconds: float
    ) -> bytes:
        """Try once; raise Missed if that came to nothing."""
        request = self._open().build_request(
            method,
            f"{self.url}{PREFIX}{path}",
            params=given(query or {}),
            content=content,
            headers=headers_of(content),
            timeout=httpx.Timeout(seconds, connect=CONNECTS_WITHIN),
        )
        try:
            sent = await self._open().send(request, stream=True)
            async with aclosing(sent):
                response = await whole(sent, self._most)
        except httpx.RequestError as error:
            raise missed_connection(error, self.url) from None
        if not response.is_success:
            raise missed_answer(response, self.clock.now(), self._token)
        return response.content

    @asynccontextmanager
    async def stream(self, path: str, query: Query) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a stream, and give its lines; raise Missed if it is refused or cut off."""
        request = self._open().build_request(
            "GET",
            f"{self.url}{PREFIX}{path}",
            params=given(query),
            headers={"Accept": NDJSON},
            timeout=httpx.Timeout(self._silence, connect=CONNECTS_WITHIN),
        )
        try:
            response = await self._open().send(request, stream=True)
            async with aclosing(response):
                await self._check_stream(response)
                yield lines_of(response.aiter_raw(), self._most)
        except httpx.RequestError as error:
            raise missed_connection(error, self.url) from None

    async def _check_stream(self, response: httpx.Response) -> None:
        if not response.is_success:
            refusal = await whole(response, self._most)
            raise missed_answer(refusal, self.clock.now(), self._token)
        check_plain(response)
        if response.headers.get("content-type", "").partition(";")[0] != NDJSON:
            raise FailedTry(foreign(response))

    def _open(self) -> httpx.AsyncClient:
        if self._http is None:
            raise InvalidInput("this client is not open: use `async with client`")
        return self._http


async def lines_of(pieces: AsyncIterable[bytes], most: int) -> AsyncGenerator[bytes, None]:
    """Give each line once it is whole. Only a line feed ends one: JSON may hold any other.

    A stream that ends within a line was cut, whatever its connection says. A line of more than
    `most` bytes is refused before it is whole.
    """
    begun: list[bytes] = []
    size = 0
    async for piece in pieces:
        *whole, rest = piece.split(b"\n")
        for end in whole:
            yield b"".join((*begun, end))
            begun, size = [], 0
        if rest:
            begun.append(rest)
            size += len(rest)
        if size > most:
            raise FailedTry(too_large("a line of a stream", most))
    if begun:
        raise FailedTry(ServerUnavailable("a stream ended within a line"), is_passing=True)


def headers_of(content: bytes | None) -> dict[str, str]:
    """Return what a request says of itself: its body's type, and the span that it is sent in."""
    found = {} if content is None else {"Content-Type": "application/json"}
    if parent := trace_context.current():
        found[trace_context.HEADER] = parent
    return found


async def whole(response: httpx.Response, most: int) -> httpx.Response:
    """Return an answer with its body, of `most` bytes at most, as it came over the wire."""
    check_plain(response)
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > most:
            raise FailedTry(too_large("the server's answer", most))
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        content=bytes(body),
        request=response.request,
    )


def check_plain(response: httpx.Response) -> None:
    """Refuse an answer that is compressed although that was not wanted."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FailedTry(
            InvalidServerAnswer(
                "the server sent a compressed answer, which is refused: have the proxy before it"
                " heed `Accept-Encoding: identity`"
            )
        )


def too_large(what: str, most: int) -> InvalidServerAnswer:
    return InvalidServerAnswer(f"{what} is larger than {most:,} bytes, the most that is taken")


def given(query: Query) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value is not None}


def uncertain(error: OutlastError) -> OutlastError:
    """Return an error that leaves it unknown whether the request was carried out."""
    error.message += PERHAPS
    error.args = (error.message,)
    return error


def check_server(url: Any) -> str:
    """Return the address of a server without its last slash, if it can be one.

    No error repeats what was given: a URL may carry a password, and a token is a secret.
    """
    if not isinstance(url, str):
        raise InvalidUrl("a server's address has to be a text: http://localhost:8000")
    try:
        parts = urlsplit(url)
        check_parts(url, parts)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        raise InvalidUrl(
            "this is not the address of a server: write http://localhost:8000"
        ) from None
    if parts.query:
        raise InvalidUrl("a server's address must not have a ? in it")
    return url.rstrip("/")


def check_secret(token: Any) -> str | None:
    """Return a token that can stand in a header, or None where none was given."""
    if token is None:
        return None
    if token == "":
        raise InvalidInput("the token is empty: is the variable or file that it comes from set?")
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise InvalidInput(
            "a token is letters, digits and ._~+/=- without blanks or line breaks; "
            "was it read from a file with the end of the line?"
        )
    return token


def segment(name: str) -> str:
    """Return a name as one part of a path; dots would lead out of it."""
    return quote(name, safe="").replace(".", "%2E")
