"""What a lane's records mean beside the log: keys taken, permits given back, letters sent.

It goes into the same commit as the records. Immutable, so that what a refused commit
would have done is forgotten by going back to what was before.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.lane import Lane
from outlast.core.limit import freed_by
from outlast.core.record import AnyRecord
from outlast.store import Admission, Commit, EffectClaim

HOLDS = frozenset({r.ToolStarted, r.ToolCompleted, r.ToolFailed, r.ToolInterrupted})
"""The records that take, fill or give up a hold on an idempotency key."""


class CommitDraft(Struct, frozen=True, gc=False):
    """Changes that wait for the next commit: see the fields of the same names in `Commit`."""

    effects: tuple[EffectClaim, ...] = ()
    frees: tuple[str, ...] = ()
    sends: tuple[Admission, ...] = ()

    def noting(self, record: AnyRecord, lane: Lane, permits: Collection[str]) -> CommitDraft:
        """Add what one more record means, for a lane that is as it was before it."""
        noted = self
        if type(record) in HOLDS and (effect := effect_of(lane, record)):
            noted = replace(noted, effects=(*noted.effects, effect))
        if permits and (freed := tuple(freed_by(record, permits))):
            noted = replace(noted, frees=(*noted.frees, *freed))
        return noted

    def sending(self, letters: tuple[Admission, ...]) -> CommitDraft:
        return replace(self, sends=(*self.sends, *letters)) if letters else self

    def keeping(self, calls: Collection[str]) -> CommitDraft:
        """Leave calls their permits after all: they begin again in the same commit."""
        return replace(self, frees=tuple(call for call in self.frees if call not in calls))

    def freeing(self, calls: Collection[str]) -> CommitDraft:
        return replace(self, frees=(*self.frees, *calls))

    def with_all(self, other: CommitDraft) -> CommitDraft:
        """Return these changes, and another's after them."""
        return CommitDraft(
            (*self.effects, *other.effects),
            (*self.frees, *other.frees),
            (*self.sends, *other.sends),
        )

    def without(self, commit: Commit, apart: CommitDraft) -> CommitDraft:
        """Return what is left when a commit has landed, in which `apart` went along with these."""
        left = CommitDraft(
            self.effects[len(commit.effects) - len(apart.effects) :],
            self.frees[len(commit.frees) - len(apart.frees) :],
            self.sends[len(commit.sends) - len(apart.sends) :],
        )
        return left if left != NOTHING else NOTHING


NOTHING = CommitDraft()


def effect_of(lane: Lane, record: AnyRecord) -> EffectClaim | None:
    """Return the hold on an idempotency key that a record takes, fills or gives up."""
    call_id = getattr(record, "call_id", "")
    call = lane.turn.calls.get(call_id) if lane.turn and call_id else None
    if call is None or not call.dedupe:
        return None
    if not (call.attempt or isinstance(record, r.ToolStarted)):
        return None  # it never began, so the key may be another call's
    scope, _, key = call.dedupe.partition("\n")
    hold = EffectClaim(scope, key, lane.session, call.call_id)
    match record:
        case r.ToolStarted():
            return hold
        case r.ToolCompleted(same_as=""):
            told = msgspec.json.encode([record.value, record.message]).decode()
            return replace(hold, state="done", value=told)
        case r.ToolFailed(again_at=0):
            return replace(hold, state="free")
        case r.ToolInterrupted(final=True):
            return replace(hold, state="unknown")
    return None
