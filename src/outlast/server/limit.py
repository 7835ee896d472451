"""Limits on what callers may ask: host names, sizes, requests a second, open streams.

`RequestLimitMiddleware` is the outermost middleware: it bounds headers and bodies before anything
else reads them. Limits per caller are applied once the caller is known (`auth.py`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlast.clock import Clock
from outlast.core.instant import seconds
from outlast.log_context import get_logger
from outlast.server.address import headers, host_of, is_allowed, path_of
from outlast.server.error import ErrorResponse, internal
from outlast.server.response_limit import ReaderStalled, SlicedSend, UnsentBytes
from outlast.server.settings import ServerSettings

MOST_KNOWN = 10_000
"""Callers that are remembered; the oldest is forgotten and starts with a full bucket."""


class RateLimiter:
    """A bucket of tokens per caller: `burst` fit in, `rate` are added every second."""

    def __init__(self, rate: float, burst: int, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = max(1, burst)
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """Take one token; return 0, or in how many seconds there will be one."""
        if self._rate <= 0:
            return 0.0
        now = self._monotonic()
        # Taken out and put back at the end: so the first is the one that was not heard of for
        # longest.
        left, since = self._buckets.pop(caller, (float(self._burst), now))
        left = min(self._burst, left + (now - since) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        # One that is refused pays nothing: or a caller that asks again too soon would never be let
        # in.
        self._buckets[caller] = (left if wait else left - 1, now)
        if len(self._buckets) > MOST_KNOWN:
            self._buckets.popitem(last=False)
        return wait


class StreamLimiter:
    """Counts the streams that each caller has open."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, int] = {}

    def enter(self, caller: str, *, is_limited: bool = True) -> bool:
        """Count one more, or say that there are as many as may be."""
        count = self._open.get(caller, 0)
        if is_limited and 0 < self._most <= count:
            return False
        self._open[caller] = count + 1
        return True

    def leave(self, caller: str) -> None:
        self._open[caller] -= 1
        if not self._open[caller]:
            del self._open[caller]

    @property
    def total(self) -> int:
        return sum(self._open.values())


log = get_logger("outlast.server")

PROBES = ("/healthz", "/readyz", "/v1/healthz", "/v1/readyz")
"""Health checks call these under any host name or address."""

SECURITY = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Added where an answer does not say otherwise."""


class RequestLimitMiddleware:
    """Middleware: the outermost."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, clock: Clock) -> None:
        self._app = app
        self._settings = settings
        self._clock = clock
        self._unsent = UnsentBytes(settings.max_unsent_per_key, clock.monotonic)
        self._reader_timeout = seconds(settings.reader_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            answer = HeaderedSend(SlicedSend(scope, send, self._unsent, self._reader_timeout))
            try:
                await self._pass(scope, receive, answer)
            except (ClientDisconnect, ReaderStalled):
                return  # it left before its body was whole, or takes no answer
            except Exception:
                if answer.has_begun:
                    raise  # only cutting the connection can tell the reader
                log.exception("a request could not be answered")
                await internal().response()(scope, receive, answer)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": "no websockets here"})
        else:
            await self._app(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope)
        except ErrorResponse as refusal:
            await refusal.response()(scope, receive, send)
        else:
            settings, monotonic = self._settings, self._clock.monotonic
            timeout = seconds(settings.body_timeout)
            body = CountedReceive(receive, settings.max_body, timeout, monotonic)
            await self._app(scope, body, send)

    def _check(self, scope: Scope) -> None:
        settings = self._settings
        allowed = settings.allowed_hosts
        if allowed and path_of(scope) not in PROBES and not is_allowed(host_of(scope), allowed):
            raise unknown_host()
        size = len(scope["path"]) + len(scope["query_string"])
        size += sum(len(key) + len(value) for key, value in scope["headers"])
        if size > settings.max_header:
            raise ErrorResponse(
                431,
                "HEADERS_TOO_LARGE",
                f"the address and the headers have {size:,} bytes, "
                f"and {settings.max_header:,} is the most",
                limit=settings.max_header,
            )
        lengths = list(headers(scope, b"content-length"))
        # Two readers of one request could disagree on where it ends, and one of them smuggle a
        # second one in it.
        if lengths and any(headers(scope, b"transfer-encoding")):
            raise ErrorResponse(
                400,
                "INVALID_LENGTH",
                "a body has a Content-Length or comes in chunks, not both",
                headers={"Connection": "close"},  # where it ends is anybody's guess
            )
        for length in lengths:
            check_length(length, settings.max_body)


class HeaderedSend:
    """Sends a response with the headers that every response has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            given = list(message.get("headers", ()))
            known = {key.lower() for key, _ in given}
            more = [pair for pair in SECURITY if pair[0] not in known]
            message = {**message, "headers": [*given, *more]}
        await self._send(message)


SLOWEST = 16 * 1024
"""Bytes a second that a body has to bring at least, once its first seconds are over."""


class CountedReceive:
    """Receives a body, with bounds on its size, on a pause in it and on its whole time.

    It may pause for `timeout` seconds, and takes no longer in all than that and one second for
    every `SLOWEST` bytes of it: a byte now and then does not keep a connection.
    """

    def __init__(
        self, receive: Receive, most: int, timeout: float, monotonic: Callable[[], float]
    ) -> None:
        self._receive = receive
        self._most = most
        self._timeout = timeout
        self._monotonic = monotonic
        self._until: float | None = None
        self._size = 0
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._time_left()):
                message = await self._receive()
        except TimeoutError:
            raise ErrorResponse(
                408,
                "BODY_TIMEOUT",
                f"the body did not come in time: {self._timeout:g} seconds,"
                f" and one more for every {SLOWEST:,} bytes",
                headers={"Connection": "close"},
            ) from None
        self._size += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._size > self._most:
            raise too_large(self._most)
        return message

    def _time_left(self) -> float:
        now = self._monotonic()
        if self._until is None:
            self._until = now + self._timeout
        return min(self._timeout, self._until + self._size / SLOWEST - now)


def check_length(length: str, most: int) -> None:
    if not (length.isascii() and length.isdigit()):
        raise ErrorResponse(400, "INVALID_LENGTH", "the Content-Length is not a number")
    # The length of the number first: Python refuses to read one of thousands of digits.
    if len(length) > 18 or int(length) > most:
        raise too_large(most)


def too_large(most: int) -> ErrorResponse:
    return ErrorResponse(
        413,
        "BODY_TOO_LARGE",
        f"the body is larger than {most:,} bytes, which is the most",
        hint="Put large files where tools can read them, and send where they are.",
        limit=most,
    )


def unknown_host() -> ErrorResponse:
    return ErrorResponse(
        421,
        "HOST_NOT_ALLOWED",
        "the server does not answer to the name in the Host header",
        hint="Use one of the names that it was given: allowed_hosts in ServerSettings.",
    )
