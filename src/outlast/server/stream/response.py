"""How a stream is sent: piece by piece, as fast as its reader takes it, until either leaves.

Owns the difference between a stream that ended and one that was cut. Knows nothing of what is sent:
the pieces come from `route.py` and `durable.py`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from outlast.server.error import ErrorResponse
from outlast.server.response_limit import ReaderStalled
from outlast.server.stream.reader import StreamCut

T = TypeVar("T")

HEADERS = {
    "Cache-Control": "no-cache, no-store",
    "X-Accel-Buffering": "no",  # a proxy that collected pieces would make a stream a page
}


def come_again() -> ErrorResponse:
    """Return the error for a reader that this process cannot serve now."""
    headers = {"Retry-After": "1", "Connection": "close"}
    return ErrorResponse(
        503, "STREAM_CUT", "the stream cannot be followed here now", headers=headers
    )


class StreamResponse(StreamingResponse):
    """A response that is sent while it is made. `hold` is entered before anything is sent.

    One that is cut lacks its last chunk, so that its reader can tell.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        hold: AbstractAsyncContextManager[None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(pieces, headers={"Content-Type": media_type, **HEADERS, **(headers or {})})
        self._pieces = pieces
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The server is stopping and waits no longer, so this stream is cut.
        with suppress(asyncio.CancelledError):
            # Before the first byte: a caller with too many streams gets an error, and no stream
            # that is cut.
            async with self._hold:
                await unless_gone(receive, self._send(send))

    async def _send(self, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        except (StreamCut, ReaderStalled):
            return  # caught here: further out, the traceback would keep what was being sent
        # Only at a real end. A cut stream lacks it, so its reader knows that there is more.
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def cut_is_no_fault(record: logging.LogRecord) -> bool:
    """Filter what uvicorn says of a response that was cut: it was meant to be."""
    return record.msg != "ASGI callable returned without completing response."


class LaterResponse(Response):
    """A response that is known only after a while, if its client still wants it then."""

    def __init__(
        self,
        make: Callable[[], Coroutine[Any, Any, Response]],
        hold: AbstractAsyncContextManager[None],
    ) -> None:
        super().__init__()
        self._make = make
        self._hold = hold

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._hold:
                response = await unless_gone(receive, self._make())
        except asyncio.CancelledError:  # the server stops, and waits no longer
            response = come_again().response()
        if response is not None:
            await response(scope, receive, send)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T | None:
    """Do some work and return what it came to, or give it up when the client leaves."""
    # A client that has left says so on `receive` alone: sending to it does not fail for a long
    # time.
    working, leaving = asyncio.create_task(work), asyncio.create_task(gone(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
