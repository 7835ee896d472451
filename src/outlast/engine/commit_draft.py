"""All that waits for a lane's next commit: records, and what they mean besides.

Owns the encoding of records on their way to the log: each is encoded once, here, so that one that
cannot be stored is refused before it is folded. What records mean besides goes into the same
commit: idempotency keys taken, permits given back, messages to other sessions. Refuses to know
when it is committed: see `owned_lane.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from outlast.core import codec
from outlast.core import record as r
from outlast.core.lane import Lane
from outlast.core.record import AnyRecord
from outlast.store import Admission, EffectClaim

HOLDS = frozenset({r.ToolStarted, r.ToolCompleted, r.ToolFailed, r.ToolInterrupted})
"""The records that take, fill or give up a hold on an idempotency key."""
CHARGES = frozenset({r.BudgetCharged, r.BudgetExtended})
"""The records that change budgets."""


class CommitDraft:
    """The parts of a commit. The lists are the fields of the same names in `Commit`.

    `budgets` are the records from which those are made.
    """

    __slots__ = ("body", "budgets", "effects", "frees", "records", "sends")

    def __init__(self) -> None:
        self.records: list[AnyRecord] = []
        self.body = bytearray()
        self.effects: list[EffectClaim] = []
        self.frees: list[str] = []
        self.sends: list[Admission] = []
        self.budgets: list[AnyRecord] = []

    def add(self, records: Sequence[AnyRecord]) -> None:
        """Add records. Raises NotEncodable, having added none, if one cannot be stored."""
        body = self.body
        size = len(body)
        try:
            for record in records:
                # Encoded here for good: the commit only puts the head of an array before these
                # bytes.
                codec.encode_into(record, body, -1)
        except codec.UNENCODABLE as error:
            # What was drafted before stays: the lane writes a failure in the place of these.
            del body[size:]
            raise codec.not_encodable(error) from error
        self.records += records

    def keep_permits(self, calls: Collection[str]) -> None:
        """Leave calls their permits after all: they begin again in the same commit."""
        self.frees = [call for call in self.frees if call not in calls]

    def then(self, later: CommitDraft) -> CommitDraft:
        """Return a draft of all that is in this one, and after it all that is in a later one."""
        both = CommitDraft()
        for name in self.__slots__:
            setattr(both, name, getattr(self, name) + getattr(later, name))
        return both


def effect_of(lane: Lane, record: AnyRecord) -> EffectClaim | None:
    """Return the hold on an idempotency key that a record takes, fills or gives up."""
    call_id = getattr(record, "call_id", "")
    call = lane.turn.calls.get(call_id) if lane.turn and call_id else None
    if call is None or not call.dedupe:
        return None
    if not (call.attempt or isinstance(record, r.ToolStarted)):
        return None  # it never began, so the key may be another call's
    hold = EffectClaim(call.dedupe.scope, call.dedupe.key, lane.session, call.call_id)
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
