"""Commits: what a lane's owner writes, the answers to it, and a tool's transaction.

Owns the fields of these. `log.py` says what `commit` promises; how the engine makes commits is told
in `docs/explanation/internals.md`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from outlast.core.amount import BudgetChange, BudgetKey
from outlast.core.index import NO_CHANGES, Index
from outlast.core.record import AnyRecord, Entry
from outlast.core.usage import UsageChange
from outlast.store.admission import Admission
from outlast.store.work import Pin


class FoldSnapshot(Struct, frozen=True, gc=False):
    """A fold's result up to and with `offset`, made by the rules of `fold`."""

    offset: int
    fold: int
    data: bytes


class EffectClaim(Struct, frozen=True, gc=False):
    """A call's hold on an idempotency key in a scope.

    `state`: held (by a call that has begun), done (with its outcome in `value`), unknown (it
    was interrupted), or free (it failed for certain, so another may try).
    """

    scope: str
    key: str
    session_id: str
    call_id: str
    state: str = "held"
    value: str = ""


class Commit(Struct, frozen=True, gc=False, kw_only=True):
    """Records that a lane's owner adds to the log, all of them or none, with their side effects.

    `number` is the lane's commit number as the owner knows it, `seen` the last offset that it has
    folded: a log that ends before it is not the one that the commit was made for. `epoch` is the
    one in which the owner has read the log (see `Claim`). `ready_at` is when the lane wants to be
    claimed again should its owner be gone: an instant, or None for not before something arrives.
    With `release` the lane has no owner afterwards. `effects` are holds to take or to change:
    one that another call has, and that is not free, refuses the commit. `frees` are calls
    that give back their permits, or wait for none any more. With `awaits_permit` the lane
    rests because a call of it waits for a permit: if there is a place for one now, the
    commit is refused as if that had arrived. `slices_seen`, where given, is the offset of the
    last change of slices that the owner knows: a newer one refuses the commit. `wait` names
    what a lane that rests waits for. With `tells` the session's outbox cursors have something to
    tell: they are due now by the store's clock, whatever the commit's `at`.
    `sends` arrive at other sessions with this commit; one that cannot be admitted is dropped.
    `deaths`, where given, is how many owners the lane has lost by now without getting on: 0 says
    that it has got on, and ends its pause.
    `used` is added to the usage of the session on the day of the commit, in UTC. `pin`, where
    given, is the deployment that the lane is pinned to from now on, an empty one being none.
    `budgets` are changes of budgets; with `asks_budgets` the commit is refused if one of them asks
    for more than is free, and writes them in any case otherwise. A lane that rests and
    `awaits_budgets` is made ready when something comes back to one of them; if that has happened
    since it saw so many returns, the commit is refused as if something had arrived.
    """

    session_id: str
    lane: str
    worker: str
    fence: int
    number: int
    seen: int
    at: int
    records: tuple[AnyRecord, ...]
    body: bytes
    index: Index = NO_CHANGES
    status: str = "running"
    turn: str = ""
    ready_at: int | None = 0
    release: bool = False
    snapshot: FoldSnapshot | None = None
    slices: FoldSnapshot | None = None
    slices_seen: int | None = None
    effects: tuple[EffectClaim, ...] = ()
    frees: tuple[str, ...] = ()
    awaits_permit: bool = False
    wait: tuple[str, ...] = ()
    tells: bool = False
    sends: tuple[Admission, ...] = ()
    epoch: str = ""
    deaths: int | None = None
    used: tuple[UsageChange, ...] = ()
    pin: Pin | None = None
    budgets: tuple[BudgetChange, ...] = ()
    asks_budgets: bool = False
    awaits_budgets: tuple[tuple[BudgetKey, int], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Say whether it adds to the log, and nothing else but usage follows from it."""
        return (
            self.index is NO_CHANGES
            and bool(self.records)
            and not (self.release or self.tells or self.effects or self.frees or self.sends)
            and self.ready_at is not None
            and self.snapshot is None
            and self.slices is None
            and self.slices_seen is None
            and not self.awaits_permit
            and self.deaths is None
            and self.pin is None
            and not self.budgets
        )


class Committed(Struct, frozen=True, gc=False):
    """The commit is in the log from `first_offset` on; `arrivals` came since `seen`.

    `checksum` is that of its row (see `Entry`), or empty if it has no records.
    """

    first_offset: int
    at: int
    arrivals: tuple[Entry, ...] = ()
    checksum: str = ""


class Refused(Struct, frozen=True, gc=False):
    """Nothing of the commit was written.

    `reason`: `lease_lost` (another worker owns the lane, the commit's number is not the lane's, or
    the log ends before what the owner has folded), `history_changed` (the database is in another
    `epoch` than the commit's, and may have lost what the owner has folded: compare, and commit in
    that epoch if nothing is lost), `arrivals` (it would have parked the lane, or closed a request,
    past what arrived), `slices_changed` (it was made of slices that are older than the newest),
    `turns_open` (it rolls slices back, and another lane of the session has an open turn),
    `budget` (it asks for more of a budget than is free), `effect_taken` (another call holds the
    idempotency key in `effect`), `token_taken` (another living session has the continuation token,
    or this one is over), or `undone` (the transaction that it was to end came to nothing before
    it).
    """

    reason: str
    arrivals: tuple[Entry, ...] = ()
    effect: EffectClaim | None = None
    epoch: str = ""


class Transaction(Protocol):
    """A database transaction that a tool shares with the record of its outcome."""

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        """Run a statement and return the number of rows that it changed."""
        ...

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and return its rows."""
        ...

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Run a query and return its first row, or None."""
        ...

    @property
    def raw(self) -> Any:
        """The driver's own connection."""
        ...

    async def commit(self, commit: Commit) -> Committed | Refused:
        """Write the commit in this transaction and end it; refused, all is rolled back.

        One that was lost on the way, or stopped by the database, is refused as `undone` if it is
        certain that nothing of it was written. Where that is unknown, this raises StoreUnavailable.
        """
        ...
