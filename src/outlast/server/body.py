"""Bodies as they come in: read once the caller may send them, strictly JSON, of bounded size.

Also the time that a request may take, counted from when its body is here.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar, get_type_hints

from fastapi import Request, Response
from fastapi.params import Security
from fastapi.routing import APIRoute
from msgspec import Struct

from outlast.core.instant import Span, seconds
from outlast.core.json_text import JsonRefused, read_json
from outlast.server.error import ErrorResponse, unavailable

JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;|$)", re.IGNORECASE)

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


LARGE = 256 * 1024
"""Bytes from which on a body is read on another thread, so that other requests go on."""


def decode(raw: bytes) -> Any:
    """Return JSON as a value, or refuse the request."""
    try:
        return read_json(raw)
    except JsonRefused as why:
        raise ErrorResponse(400, "INVALID_JSON", f"the body is not JSON: {why}") from None


class JsonRequest(Request):
    """A request whose body, if any, is JSON."""

    async def json(self) -> Any:
        raw = await self.body()
        if len(raw) < LARGE:
            return decode(raw)
        threads = self.app.state.backend.threads
        return await asyncio.get_running_loop().run_in_executor(threads, decode, raw)


class JsonRoute(APIRoute):
    """A route that takes no other body than JSON, and answers in time.

    FastAPI reads and decodes a body before it looks at anything else. Here the caller's scope is
    looked at first: one that may not send a body does not have it read.
    """

    is_timed: ClassVar[bool] = True

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        takes_body = self.body_field is not None
        scopes = scopes_of(self.endpoint)

        async def checked(given: Request) -> Response:
            request = JsonRequest(given.scope, given.receive)
            backend = request.app.state.backend
            if scopes:
                backend.principal(request, *scopes)
            # Read in here, after the scope and within the limits, and not by FastAPI.
            if takes_body and await request.body():
                check_type(request)
            if not self.is_timed:
                return await handle(request)
            return await in_time(handle(request), backend.settings.timeout)

        return checked


class AnyScope(Struct, frozen=True):
    """Marks the caller of a route that takes several kinds of bodies, each with its own scope."""

    scopes: tuple[str, ...]


def scopes_of(endpoint: Callable[..., Any]) -> tuple[str, ...]:
    """Return the scopes of which a route's caller needs one, as its parameters say it."""
    hints = get_type_hints(endpoint, include_extras=True)
    found = (each for hint in hints.values() for each in getattr(hint, "__metadata__", ()))
    marks = (each for each in found if isinstance(each, Security | AnyScope))
    return tuple(scope for mark in marks for scope in mark.scopes or ())


class WaitingRoute(JsonRoute):
    """A route whose caller says how long it may take."""

    is_timed = False


async def in_time(work: Awaitable[T], timeout: Span) -> T:
    """Do something that a store which is away would hold up; say so if it takes too long."""
    try:
        async with asyncio.timeout(seconds(timeout)):
            return await work
    except TimeoutError:
        raise unavailable() from None


def check_type(request: Request) -> None:
    """Refuse a body that says of itself that it is something else, or says nothing."""
    if not JSON.match(request.headers.get("content-type", "")):
        raise ErrorResponse(
            415,
            "UNSUPPORTED_MEDIA_TYPE",
            "the body has to be JSON",
            hint="Send it with `Content-Type: application/json`.",
        )
