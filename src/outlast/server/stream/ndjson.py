"""A stream as lines of JSON. An empty line is a sign of life, and nothing else."""

from __future__ import annotations

from outlast.server.stream.encoding import Form
from outlast.server.stream.line import Batch


def frame(batch: Batch) -> bytes:
    return b"".join(line.data + b"\n" for line in batch.lines) or b"\n"


NDJSON = Form("application/x-ndjson", frame)
