"""The trace of a turn: its ids are digests of the session's and the turn's ids.

So any worker can add spans to a turn's trace without a stored or transmitted trace context. That of
whoever sent the message is stored, and becomes a link: see `net/trace_context.py`.
"""

from contextvars import ContextVar
from hashlib import blake2b
from typing import Any

from msgspec import Struct

MOST = 2**64


class TurnTrace(Struct, frozen=True, gc=False):
    """A turn's trace, and the span that is the parent of all other spans of the turn."""

    trace_id: int
    span_id: int

    def is_sampled(self, share: float) -> bool:
        """Say whether the turn is among those that are traced; the same in every process."""
        return self.trace_id % MOST < share * MOST


def trace_of(session: str, turn: str) -> TurnTrace:
    name = f"{session}\n{turn}".encode()
    return TurnTrace(number(name, 16, b"trace"), number(name, 8, b"span"))


def number(name: bytes, size: int, kind: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=size, person=kind).digest(), "big") or 1


_turn: ContextVar[TurnTrace | None] = ContextVar("outlast_turn_trace", default=None)


class TurnIds:
    """An id generator for an SDK, which makes a turn's own span the parent of its others.

    `TracerProvider(id_generator=TurnIds(RandomIdGenerator()))`. Without it the turn's span is
    in the same trace, beside them.
    """

    def __init__(self, others: Any) -> None:
        self._others = others

    def generate_span_id(self) -> int:
        turn = _turn.get()
        return turn.span_id if turn else int(self._others.generate_span_id())

    def generate_trace_id(self) -> int:
        turn = _turn.get()
        return turn.trace_id if turn else int(self._others.generate_trace_id())

    def is_trace_id_random(self) -> bool:
        return _turn.get() is None and bool(self._others.is_trace_id_random())


class NamedSpan:
    """Gives the spans that start while it is entered the id of the turn's own span."""

    def __init__(self, turn: TurnTrace) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        self._token = _turn.set(self._turn)

    def __exit__(self, *_: object) -> None:
        _turn.reset(self._token)
