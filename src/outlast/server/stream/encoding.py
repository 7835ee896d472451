"""What forms a stream may have: a media type, and how batches of lines are written in it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from outlast.server.stream.line import EventBatch

Frame = Callable[[EventBatch], bytes]
"""Makes text of a batch, and a sign of life of one without lines."""


class StreamEncoding(Struct, frozen=True):
    """`opening` is sent before anything else."""

    media_type: str
    frame: Frame
    opening: bytes = b""
