"""A session's log in one of the plain forms: from a cursor on, to where the reader wants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec import Struct

from outlast.server.backend import ServerBackend
from outlast.server.principal import Principal
from outlast.server.stream.encoding import StreamEncoding
from outlast.server.stream.follow import follow
from outlast.server.stream.page import up_to_end
from outlast.server.stream.reader import FeedReader
from outlast.server.stream.response import StreamResponse, come_again
from outlast.store import SessionInfo

CURSOR = "Outlast-Cursor"


class StreamQuery(Struct, frozen=True):
    """What is read: after which offset, how far (see the route's `follow`), and in which form."""

    after: int
    follow: str
    internals: bool
    form: StreamEncoding


def log_response(
    gate: ServerBackend, principal: Principal, info: SessionInfo, wanted: StreamQuery
) -> StreamResponse:
    """Answer with the log; a page says in a header where it ends."""
    is_page = wanted.follow == "false"
    if not is_page and gate.feeds.is_closed:
        raise come_again()
    pieces = page(gate, info, wanted) if is_page else stream(gate, principal, info, wanted)
    headers = {CURSOR: str(info.end)} if is_page else {}
    return StreamResponse(pieces, gate.hold(principal), wanted.form.media_type, headers)


async def page(
    gate: ServerBackend, info: SessionInfo, wanted: StreamQuery
) -> AsyncGenerator[bytes, None]:
    async for batch in up_to_end(gate.app.store, info, wanted.after, wanted.internals):
        if batch.lines:
            yield wanted.form.frame(batch)


async def stream(
    gate: ServerBackend, principal: Principal, info: SessionInfo, wanted: StreamQuery
) -> AsyncGenerator[bytes, None]:
    if wanted.form.opening:
        yield wanted.form.opening
    async with gate.feeds.open(info) as feed:
        reader = FeedReader(
            feed,
            info,
            after=wanted.after,
            internals=wanted.internals,
            until_rest=wanted.follow == "until_rest",
        )
        async with aclosing(follow(reader, gate, principal, wanted.form.frame)) as pieces:
            async for piece in pieces:
                yield piece
