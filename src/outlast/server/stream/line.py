"""Events as JSON text: the one shape in which every stream and every page has them.

An event is encoded once, however many read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from msgspec import Struct

from outlast.core.event import Event, encode
from outlast.core.record import AnyRecord

__all__ = ["EncodedEvent", "EventBatch", "encode", "line_of"]

INTERNAL = frozenset(kind.__struct_config__.tag for kind in get_args(AnyRecord) if kind.internal)


class EncodedEvent(Struct, frozen=True, gc=False):
    """One event as JSON text, and whether only readers of internals get it."""

    offset: int
    is_internal: bool
    data: bytes


class EventBatch(Struct, frozen=True, gc=False):
    """Lines in their order, and the cursor behind them and behind what is hidden there."""

    lines: Sequence[EncodedEvent]
    cursor: int


def line_of(event: Event) -> EncodedEvent:
    return EncodedEvent(event.offset, event.type in INTERNAL, encode(event))
