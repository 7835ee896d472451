"""The W3C trace context of a caller: which span of which trace a request came from.

Owns its text form, `traceparent`, and what the current one is: that of OpenTelemetry's current
span, or that of the HTTP request being answered. Spans are made in `integration/telemetry`; this
module does not import OpenTelemetry, since in a process that has not there is no current span.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from msgspec import Struct

HEADER = "traceparent"
LONGEST = 512
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_asked_by: ContextVar[str] = ContextVar("outlast_traceparent", default="")


class TraceParent(Struct, frozen=True, gc=False):
    """A span of another program, by its ids; `flags` says whether it is sampled."""

    trace_id: int
    span_id: int
    flags: int = 0

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def parse(text: str) -> TraceParent | None:
    """Return what a `traceparent` says; None if it is none. Later versions may say more."""
    found = _FORM.fullmatch(text) if len(text) <= LONGEST else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    parent = TraceParent(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return parent if parent.trace_id and parent.span_id else None


def current() -> str:
    """Return the `traceparent` of what is being done now; empty if there is none."""
    if (trace := sys.modules.get("opentelemetry.trace")) is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            return str(TraceParent(span.trace_id, span.span_id, int(span.trace_flags) & 0xFF))
    return _asked_by.get()


@contextmanager
def asked_by(headers: list[str]) -> Iterator[None]:
    """Have what is done meanwhile come from there; what is no single valid header is ignored."""
    parent = parse(headers[0]) if len(headers) == 1 else None
    token = _asked_by.set(str(parent) if parent else "")
    try:
        yield
    finally:
        _asked_by.reset(token)
