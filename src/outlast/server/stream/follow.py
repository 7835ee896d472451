"""A reader's batches made into pieces of a stream, with signs of life in between."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from outlast.server.backend import ServerBackend
from outlast.server.principal import Principal
from outlast.server.stream.encoding import Frame
from outlast.server.stream.reader import FeedReader, StreamCut


async def follow(
    reader: FeedReader, gate: ServerBackend, principal: Principal, frame: Frame
) -> AsyncGenerator[bytes, None]:
    """Give what the reader gives; `frame` makes a sign of life of a batch without lines.

    At every heartbeat it is asked whether the reader may go on: a key can be revoked.
    """
    clock = gate.app.clock
    due = clock.monotonic() + gate.heartbeat
    while (batch := await reader.next(due - clock.monotonic())) is not None:
        is_due = clock.monotonic() >= due
        if is_due:
            if not await gate.still_valid(principal):
                raise StreamCut
            due = clock.monotonic() + gate.heartbeat
        if batch.lines or is_due:
            yield frame(batch)
