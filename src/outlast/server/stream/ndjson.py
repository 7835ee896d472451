"""A stream as lines of JSON. An empty line is a sign of life, and nothing else."""

from __future__ import annotations

from outlast.server.stream.encoding import StreamEncoding
from outlast.server.stream.line import EventBatch


def frame(batch: EventBatch) -> bytes:
    return b"".join(line.data + b"\n" for line in batch.lines) or b"\n"


NDJSON = StreamEncoding("application/x-ndjson", frame)
