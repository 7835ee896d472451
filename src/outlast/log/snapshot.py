"""Where folding begins: at the snapshots of a lane and of its session's slices.

A snapshot is derived from the log, so one that is damaged is told and left out: the log is folded
from its beginning, and the next snapshot takes the damaged one's place.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from outlast.core.lane import Lane
from outlast.core.slice import EMPTY, KeptSlice, Slices
from outlast.log_context import get_logger
from outlast.store import FoldSnapshot, Loaded

log = get_logger("outlast.log")

_decode_lane = msgspec.msgpack.Decoder(Lane).decode
_decode_slices = msgspec.msgpack.Decoder(dict[str, KeptSlice]).decode

LoadAfter = Callable[[int | None], Awaitable[Loaded]]
"""Loads a lane from its snapshots on, or what comes after an offset."""


class FoldStart(NamedTuple):
    """The states that the entries in `loaded` are to be folded into.

    `state` holds all up to `offset`, and is None at the log's beginning.
    """

    loaded: Loaded
    state: Lane | None = None
    offset: int = 0
    slices: Slices = EMPTY
    slices_offset: int = 0
    was_damaged: bool = False


async def load_start(load: LoadAfter, session_id: str, lane: str) -> FoldStart:
    """Load a lane; without its snapshots, if one of them cannot be read."""
    loaded = await load(None)
    if not (why := loaded.damaged):
        try:
            return start_of(loaded)
        except msgspec.MsgspecError as error:
            why = str(error)
    extra = {"session": session_id, "lane": lane, "why": why}
    log.warning("a snapshot cannot be read, and the log is folded from its beginning", extra=extra)
    return FoldStart(await load(0), was_damaged=True)


def start_of(loaded: Loaded) -> FoldStart:
    """Return what the snapshots hold. Raises a MsgspecError if one cannot be decoded."""
    state, slices = loaded.snapshot, loaded.slices
    return FoldStart(
        loaded,
        _decode_lane(state.data) if state else None,
        offset_of(state),
        _decode_slices(slices.data) if slices else EMPTY,
        offset_of(slices),
    )


def offset_of(snapshot: FoldSnapshot | None) -> int:
    return snapshot.offset if snapshot else 0
