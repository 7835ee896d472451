"""Lets the conformance suite of Durable Streams read runs: its writes become a run that emits.

The suite creates streams of any media type and appends to them; a run has one stream, of JSON
events, and only its body writes. So a PUT here starts a run, a POST sends it an event whose payload
its body emits, and DELETE erases it. A read is asked of `/v1/runs/{id}` as it came, and its answer
is handed on as it is: status, headers and control events are those of the server. Only the body is
changed: of all events those that were emitted are left, as the bytes that were appended.
"""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from outlast import Outlast, Run, WorkflowContext, workflow

JSON = "application/json"
HOP = {"content-length", "transfer-encoding", "connection", "content-type", "date", "server"}
PASSED_ON = (
    *("if-none-match", "accept", "origin"),
    *("access-control-request-method", "access-control-request-headers"),
)
APPENDED, WRITTEN = "append", "written"


@workflow
async def stream(ctx: WorkflowContext) -> None:
    """Emit what comes, until that says that it was the last."""
    while True:
        got = await ctx.wait_event(APPENDED)
        for each in got["parts"]:
            ctx.emit(WRITTEN, each)
        if got["last"]:
            return


class AdaptedStream:
    """One stream of the suite: a run, and the media type that its creator said."""

    def __init__(self, run: Run[Any], media_type: str) -> None:
        self.run = run
        self.media_type = media_type
        self.closed = False
        self.appends = 0
        self._writing = asyncio.Lock()

    @property
    def is_json(self) -> bool:
        return self.media_type.partition(";")[0].strip().lower() == JSON

    @property
    def is_text(self) -> bool:
        return self.media_type.startswith("text/")

    def parts_of(self, body: bytes) -> list[Any]:
        if not body:
            return []
        if not self.is_json:
            return [b64encode(body).decode()]
        given = json.loads(body)
        return given if isinstance(given, list) else [given]

    async def append(self, body: bytes, *, last: bool = False) -> None:
        """Have the body emit something, and wait until the run rests again."""
        async with self._writing:
            self.closed = self.closed or last
            payload = {"parts": self.parts_of(body), "last": last}
            await self.run.send_event(APPENDED, payload)
            self.appends += 1
            await self.at_rest()

    async def at_rest(self) -> None:
        """Wait until the body waits for the next append, or has ended."""
        taken = 0
        async for event in self.run.events():
            taken += event.type == "tool.woken"
            is_over = event.type in ("session.completed", "session.failed")
            if is_over or (event.type == "session.waiting" and taken >= self.appends):
                return

    def content(self, events: list[Any]) -> list[Any]:
        """Return what was appended, of a page of the run's events."""
        return [
            event["data"]["data"]
            for event in events
            if event["type"] == "tool.emitted" and event["data"]["name"] == WRITTEN
        ]

    def page(self, events: list[Any]) -> bytes:
        found = self.content(events)
        if self.is_json:
            return json.dumps(found).encode()
        return b"".join(b64decode(each) for each in found)

    def event(self, events: list[Any]) -> str:
        """Return the data event of a page, "" if nothing in it was appended."""
        found = self.content(events)
        if not found:
            return ""
        if self.is_json:
            text = json.dumps(found)
        elif self.is_text:
            text = self.page(events).decode()
        else:
            text = b64encode(self.page(events)).decode()
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return "event: data\n" + "".join(f"data:{line}\n" for line in lines) + "\n"


class Adaptor:
    """An ASGI app that the suite takes for a server of Durable Streams."""

    def __init__(self, app: Outlast, url: str) -> None:
        self._app = app
        self._http = httpx.AsyncClient(base_url=f"{url}/v1", timeout=60)
        self._streams: dict[str, AdaptedStream] = {}
        self._long_poll = "long-poll"

    async def close(self) -> None:
        await self._http.aclose()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        answers = {"PUT": self._create, "POST": self._append, "DELETE": self._erase}
        response = await answers.get(request.method, self._read)(request)
        await response(scope, receive, send)

    # Writes: just enough for there to be something to read

    async def _create(self, request: Request) -> Response:
        path, body = request.url.path, await request.body()
        media_type = request.headers.get("content-type", "application/octet-stream")
        closes = request.headers.get("stream-closed", "").lower() == "true"
        known = self._streams.get(path)
        if known:
            is_same = (known.media_type.lower(), known.closed) == (media_type.lower(), closes)
            return await self._marked(known, 200 if is_same else 409)
        run = await self._app.run(stream)
        made = self._streams[path] = AdaptedStream(run, media_type)
        await made.at_rest()
        if body or closes:
            await made.append(body, last=closes)
        return await self._marked(made, 201, {"Location": str(request.url)})

    async def _append(self, request: Request) -> Response:
        body, found = await request.body(), self._streams.get(request.url.path)
        closes = request.headers.get("stream-closed", "").lower() == "true"
        if found is None:
            return Response(status_code=404)
        if found.closed:
            only_closes = closes and not body
            marks = {"Stream-Closed": "true"}
            return await self._marked(found, 204 if only_closes else 409, marks)
        if not body and not closes:
            return Response(status_code=400)
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if body and given != found.media_type.partition(";")[0].strip().lower():
            return Response(status_code=409)
        try:
            if body and not found.parts_of(body):
                return Response(status_code=400)
        except ValueError:
            return Response(status_code=400)
        await found.append(body, last=closes)
        return await self._marked(found, 204, {"Stream-Closed": "true"} if closes else {})

    async def _erase(self, request: Request) -> Response:
        found = self._streams.pop(request.url.path, None)
        if found is None:
            return Response(status_code=404)
        await self._app.erase(found.run.id)
        return Response(status_code=204)

    async def _marked(
        self, found: AdaptedStream, status: int, headers: dict[str, str] | None = None
    ) -> Response:
        end = await self._http.head(f"/runs/{found.run.id}")
        marks = {"Stream-Next-Offset": end.headers["stream-next-offset"], **(headers or {})}
        marks["Content-Type"] = found.media_type
        if found.closed:
            marks["Stream-Closed"] = "true"
        return Response(status_code=status, headers=marks)

    # Reads: what the server answers

    async def _read(self, request: Request) -> Response:
        found = self._streams.get(request.url.path)
        path = f"/runs/{found.run.id if found else 'run_none'}"
        headers = {name: value for name, value in request.headers.items() if name in PASSED_ON}
        query = request.url.query
        while True:
            asked = self._http.build_request(
                request.method, f"{path}?{query}" if query else path, headers=headers
            )
            answer = await self._http.send(asked, stream=True)
            marks = {k: v for k, v in answer.headers.items() if k.lower() not in HOP}
            if found is None or answer.status_code not in (200, 304):
                body = await answer.aread()
                await answer.aclose()
                if kind := answer.headers.get("content-type"):
                    marks["content-type"] = kind
                return Response(body, answer.status_code, marks)
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                if not (found.is_json or found.is_text):
                    marks["stream-sse-data-encoding"] = "base64"
                marks["content-type"] = answer.headers["content-type"]
                return StreamingResponse(self._events(found, answer), 200, marks)
            body = await answer.aread()
            await answer.aclose()
            events = json.loads(body) if body else []
            # A reader of what was emitted goes on where a poll ended with other events.
            offset = answer.headers.get("stream-next-offset", "")
            if "live=long-poll" in query and events and not found.content(events):
                if "stream-closed" not in answer.headers:
                    query = f"live=long-poll&offset={offset}"
                    continue
                answer.status_code = 204
            marks["content-type"] = found.media_type
            content = b"" if request.method == "HEAD" else found.page(events)
            if answer.status_code != 200:
                content = b""
            return Response(content, answer.status_code, marks)

    async def _events(self, found: AdaptedStream, answer: httpx.Response) -> AsyncIterator[str]:
        buffer, was_left_out = "", False
        try:
            async for text in answer.aiter_text():
                buffer += text
                # Together, as they came: the suite reads what is one piece as one.
                pieces = ""
                while "\n\n" in buffer:
                    block, _, buffer = buffer.partition("\n\n")
                    if block.startswith("event: data\ndata:"):
                        piece = found.event(json.loads(block.partition("\ndata:")[2]))
                        was_left_out = not piece
                        pieces += piece
                    # A stream of what was emitted has no mark in the middle of a silence.
                    elif not was_left_out or "upToDate" in block or "streamClosed" in block:
                        pieces += f"{block}\n\n"
                yield pieces
        finally:
            await answer.aclose()
