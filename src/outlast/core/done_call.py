"""The calls that succeeded in a session, and the resources that they read and wrote.

Policies ask for it: which tools have succeeded, in whatever lane, and which resources a lane knows
as they are now. It is kept in a slice of its own, so every lane of the session has it, and only
what adds something is written.
"""

import msgspec
from msgspec import Struct

from outlast.core.record import StateChanged
from outlast.core.slice import Slices, values_of

DONE = "outlast:done"
"""The slice of what succeeded, for the sessions of agents with rules."""


class DoneCall(Struct, frozen=True, gc=False, omit_defaults=True):
    """A call that succeeded in a lane."""

    tool: str
    lane: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


class DoneCalls:
    """The calls that have succeeded so far. `known` says which lanes know a resource as it is now.

    A lane that has read it does; after one that wrote it, only that one.
    """

    def __init__(self) -> None:
        self.tools: set[str] = set()
        self.known: dict[str, frozenset[str]] = {}

    def add(self, call: DoneCall) -> None:
        self.tools.add(call.tool)
        for key in call.reads:
            self.known[key] = self.known.get(key, frozenset()) | {call.lane}
        for key in call.writes:
            self.known[key] = frozenset({call.lane})

    def has(self, call: DoneCall) -> bool:
        """Say whether a call would add nothing."""
        own = frozenset({call.lane})
        return (
            call.tool in self.tools
            and all(own <= self.known.get(key, frozenset()) for key in call.reads)
            and all(own == self.known.get(key) for key in call.writes)
        )

    def known_to(self, lane: str) -> frozenset[str]:
        """Return the resources that a lane knows as they are now."""
        return frozenset(key for key, lanes in self.known.items() if lane in lanes)


_decoder = msgspec.json.Decoder(DoneCall)


def done_calls(slices: Slices) -> DoneCalls:
    """Return what a session's slices say has succeeded."""
    done = DoneCalls()
    for value in values_of(slices, DONE):
        done.add(_decoder.decode(value.text))
    return done


def note_of(call: DoneCall, slices: Slices) -> StateChanged | None:
    """Return the record by which a call is known to have succeeded; None if it adds nothing."""
    if done_calls(slices).has(call):
        return None
    return StateChanged(slice=DONE, op="append", values=(msgspec.json.encode(call).decode(),))
