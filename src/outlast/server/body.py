"""Bodies as they come in: JSON that is strictly JSON, and nothing else.

Also the time that a request may take, counted from when its body is here.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, ClassVar, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from outlast.server.error import ErrorResponse, unavailable

JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;|$)", re.IGNORECASE)

T = TypeVar("T")
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def decode(raw: bytes) -> Any:
    """Return JSON as a value: whole, in UTF-8, every name once in its object."""
    try:
        value = msgspec.json.decode(raw)
        json.loads(raw, object_pairs_hook=refuse_repeats)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise malformed(error) from None
    return value


def refuse_repeats(pairs: list[tuple[str, Any]]) -> None:
    """Refuse a repeated name: parsers disagree on whether the first or the last value counts."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the name {name[:50]!r} stands twice in one object")
        seen.add(name)


def malformed(error: Exception) -> ErrorResponse:
    what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    return ErrorResponse(400, "INVALID_JSON", f"the body is not JSON: {what}")


class JsonRequest(Request):
    """A request whose body, if any, is JSON."""

    async def json(self) -> Any:
        return decode(await self.body())


class JsonRoute(APIRoute):
    """A route that takes no other body than JSON, and answers in time."""

    is_timed: ClassVar[bool] = True

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        takes_body = self.body_field is not None

        async def checked(given: Request) -> Response:
            request = JsonRequest(given.scope, given.receive)
            if takes_body and await request.body():
                check_type(request)
            if not self.is_timed:
                return await handle(request)
            return await in_time(handle(request), request.app.state.backend.settings.timeout)

        return checked


class WaitingRoute(JsonRoute):
    """A route whose caller says how long it may take."""

    is_timed = False


async def in_time(work: Awaitable[T], seconds: float) -> T:
    """Do something that a store which is away would hold up; say so if it takes too long."""
    try:
        async with asyncio.timeout(seconds):
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
