"""Stores and folds that break one promise each: a checker that lets them pass checks nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.amount import NOTHING, BudgetChange
from outlast.core.breaker import Breaker
from outlast.core.codec import encode
from outlast.core.fold import LANE_FACTS
from outlast.core.lane import Lane
from outlast.core.message import Text
from outlast.errors import OutlastError
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    Document,
    Loaded,
    LogPage,
    Permit,
    PermitRequest,
    Refused,
    Store,
    StoreClock,
    Transaction,
)
from outlast.store.clock import LocalStoreClock
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.wrapped_store import WrappedStore, WrappedTransaction

LANE = """
SELECT l.fence, l.worker, l.number
  FROM outlast_lanes AS l JOIN outlast_sessions AS s USING (sid)
 WHERE s.id = ? AND l.lane = ?
"""
END = "SELECT last_offset FROM outlast_session_list WHERE id = ?"
DROP_LAST_ROW = """
DELETE FROM outlast_log
 WHERE key = (SELECT max(g.key)
                FROM outlast_sessions AS s
                JOIN outlast_log AS g ON g.key BETWEEN s.sid << 32 AND s.sid << 32 | 4294967295
               WHERE s.id = ?)
"""


class LaneRow(NamedTuple):
    fence: int
    worker: str
    number: int


class BrokenStore(WrappedStore):
    """A memory store whose rows can be reached."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        assert isinstance(store, MemoryStore)
        self.memory = store

    def sql(self, statement: str, *params: Any) -> list[tuple[Any, ...]]:
        return self.memory.write_outside_transaction(
            lambda db: db.raw.execute(statement, params).fetchall()
        )

    def lane(self, commit: Commit) -> LaneRow:
        [row] = self.sql(LANE, commit.session_id, commit.lane)
        return LaneRow(*row)

    def end(self, session_id: str) -> int:
        [(end,)] = self.sql(END, session_id)
        return int(end)


class IgnoresFences(BrokenStore):
    """Writes for anybody who asks."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._as_if_owned(commit) for commit in commits])

    def _as_if_owned(self, commit: Commit) -> Commit:
        lane = self.lane(commit)
        if lane.fence == commit.fence:
            return commit
        return replace(commit, fence=lane.fence, worker=lane.worker, number=lane.number)


class LosesAdmissions(BrokenStore):
    """Gives a receipt for every seventh arrival, and forgets it."""

    counted = 0

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        self.counted += 1
        [wanted] = admissions
        if self.counted % 7 or wanted.new or not wanted.session_id:
            return await self.inner.log.admit(admissions)
        lost = AdmissionReceipt(
            session_id=wanted.session_id,
            lane=wanted.lane,
            delivery_id=wanted.delivery_id,
            offset=self.end(wanted.session_id) + 1,
        )
        return [lost]


class ForgetsTags(BrokenStore):
    """Keeps the tags of sessions in their logs only."""

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        return await self.inner.log.admit([replace(each, tags={}) for each in admissions])


class Mishears(BrokenStore):
    """Gives who loads a lane other words than were said."""

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        loaded = await self.inner.log.load(session_id, lane, after)
        return replace(loaded, entries=tuple(misheard(entry) for entry in loaded.entries))


def misheard(entry: r.Entry) -> r.Entry:
    if not isinstance(entry.record, r.DeliveryQueued) or not entry.record.content:
        return entry
    return replace(entry, record=replace(entry.record, content=(Text("pardon?"),)))


class CommitsTwice(BrokenStore):
    """Does not recognise a commit that it has written before."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._as_if_new(commit) for commit in commits])

    def _as_if_new(self, commit: Commit) -> Commit:
        lane = self.lane(commit)
        if lane.fence != commit.fence or lane.worker != commit.worker:
            return commit
        return replace(commit, number=lane.number)


class SkipsEvents(BrokenStore):
    """Leaves out the first entry of a page, now and then."""

    counted = 0

    async def read(
        self,
        session_id: str,
        after: int,
        limit: int = 500,
        *,
        large: bool = True,
        lane: str | None = None,
    ) -> LogPage:
        page = await self.inner.log.read(session_id, after, limit, large=large, lane=lane)
        self.counted += 1
        return page if self.counted % 5 else replace(page, entries=page.entries[1:])


class ForgetsOutcomes(BrokenStore):
    """Shows a new owner the lane without the outcome that its last commit recorded."""

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        loaded = await self.inner.log.load(session_id, lane, after)
        if loaded.entries and isinstance(loaded.entries[-1].record, r.ToolCompleted):
            return replace(loaded, entries=loaded.entries[:-1])
        return loaded


class ForgetsStarts(BrokenStore):
    """Shows a new owner the lane without the calls that its last commit began."""

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        loaded = await self.inner.log.load(session_id, lane, after)
        entries = list(loaded.entries)
        while entries and isinstance(entries[-1].record, r.ToolStarted):
            entries.pop()
        return replace(loaded, entries=tuple(entries))


class BooksAtOnce(BrokenStore):
    """Keeps what a transaction does, whatever becomes of it."""

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Transaction]:
        async with self.inner.log.transaction(limit) as inner:
            yield Hasty(inner, self)


class Hasty(WrappedTransaction):
    def __init__(self, inner: Transaction, store: BrokenStore) -> None:
        super().__init__(inner)
        self._store = store

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        self._store.sql(sql, *params)
        return 1


class KeepsFatBooks(BrokenStore):
    """Writes with each model call what all of them before have cost."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._with_costs(commit) for commit in commits])

    def _with_costs(self, commit: Commit) -> Commit:
        before = {f"what all had cost at {n}": n for n in range(self.end(commit.session_id))}
        records = tuple(
            replace(e, details=before) if isinstance(e, r.UsageRecorded) else e
            for e in commit.records
        )
        return replace(commit, records=records, body=encode(records))


class MissesArrivals(BrokenStore):
    """Parks a lane past what has arrived for it."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit(
            [replace(c, seen=self.end(c.session_id)) for c in commits]
        )


class KeepsLanes(BrokenStore):
    """Never lets a worker give back a lane of the first session."""

    kept = ""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._held(commit) for commit in commits])

    def _held(self, commit: Commit) -> Commit:
        self.kept = self.kept or commit.session_id
        return replace(commit, release=False) if commit.session_id == self.kept else commit


class TearsCommits(BrokenStore):
    """Drops a commit that it has acknowledged."""

    counted = 0

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        results = await self.inner.log.commit(commits)
        for commit, result in zip(commits, results, strict=True):
            self.counted += 1
            if isinstance(result, Committed) and commit.records and self.counted % 40 == 0:
                self.sql(DROP_LAST_ROW, commit.session_id)
        return results


class GrantsEverything(BrokenStore):
    """Lets every call begin, whatever the limits say."""

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        return [Permit(granted=True) for _ in await self.inner.limit.acquire(requests)]


class IgnoresLimits(BrokenStore):
    """Knows nothing of the limits whose names begin in one way."""

    ignored = ""

    async def acquire(self, requests: Sequence[PermitRequest]) -> Sequence[Permit | Refused]:
        return await self.inner.limit.acquire([self._unbound(wish) for wish in requests])

    def _unbound(self, wish: PermitRequest) -> PermitRequest:
        kept = (bound for bound in wish.bounds if not bound.name.startswith(self.ignored))
        return replace(wish, bounds=tuple(kept))


class IgnoresModelLimits(IgnoresLimits):
    ignored = "model:"


class IgnoresAgentRates(IgnoresLimits):
    ignored = "agent:"


class IgnoresAgentLimits(BrokenStore):
    """Gives out an agent's lanes, however many are at work."""

    async def claim(self, worker: str, limit: int, *args: Any, **options: Any) -> Sequence[Claim]:
        return await self.inner.work.claim(worker, limit, *args, **{**options, "most": {}})


class LosesLetters(BrokenStore):
    """Writes commits, and drops what they send to other sessions."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([replace(commit, sends=()) for commit in commits])


class BearsTwins(BrokenStore):
    """Starts every child twice, under another id."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._doubled(commit) for commit in commits])

    def _doubled(self, commit: Commit) -> Commit:
        twins = (replace(sent, **other(sent)) for sent in commit.sends if sent.new)
        return replace(commit, sends=(*commit.sends, *twins))


def other(sent: Admission) -> dict[str, str]:
    """Return what makes a twin's start another than its sibling's."""
    names = ("session_id", "delivery_id", "dispatch_id", "token")
    return {name: f"{getattr(sent, name)}x" for name in names}


class RunsAhead(BrokenStore):
    """Tells workers a time that has not come yet."""

    @property
    def clock(self) -> StoreClock:
        return LocalStoreClock(ManualClock(self.inner.clock.date() + 15_000))


class ForgetsDeadlines(BrokenStore):
    """Shows a new owner sessions and messages that have all the time of the world."""

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        loaded = await self.inner.log.load(session_id, lane, after)
        entries = [replace(e, record=endless(e.record)) for e in loaded.entries]
        return replace(loaded, snapshot=None, entries=tuple(entries))


def endless(record: r.AnyRecord) -> r.AnyRecord:
    if isinstance(record, r.SessionStarted | r.DeliveryQueued):
        return replace(record, deadline_at=0)
    return record


class OpensAnew(BrokenStore):
    """Shows a new owner requests that have run out as if they were open."""

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        loaded = await self.inner.log.load(session_id, lane, after)
        entries = [e for e in loaded.entries if not isinstance(e.record, r.RequestExpired)]
        return replace(loaded, entries=tuple(entries))


class PutsWordsIntoMouths(BrokenStore):
    """Changes what somebody outside has said to a tool."""

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        return await self.inner.log.admit([self._twisted(wanted) for wanted in admissions])

    def _twisted(self, wanted: Admission) -> Admission:
        records = tuple(
            replace(e, args=e.args.replace("call ", "recall "))
            if isinstance(e, r.DeliveryQueued)
            else e
            for e in wanted.records
        )
        return replace(wanted, records=records, body=b"")


class TakesNoForYes(BrokenStore):
    """Has whoever did not sign in come back as if they had."""

    async def admit(
        self, admissions: Sequence[Admission]
    ) -> Sequence[AdmissionReceipt | OutlastError]:
        return await self.inner.log.admit([self._agreed(wanted) for wanted in admissions])

    def _agreed(self, wanted: Admission) -> Admission:
        records = tuple(
            replace(e, option="completed", text="")
            if isinstance(e, r.DeliveryQueued) and e.option == "denied"
            else e
            for e in wanted.records
        )
        return replace(wanted, records=records, body=b"")


class KeepsPermits(BrokenStore):
    """Lets a lane that waits for its provider keep what others could use."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._tight(commit) for commit in commits])

    def _tight(self, commit: Commit) -> Commit:
        away = (r.ProviderUnavailable, r.ProviderStillUnavailable)
        return (
            replace(commit, frees=())
            if any(isinstance(e, away) for e in commit.records)
            else commit
        )


class ForgetsRules(BrokenStore):
    """Shows a new owner the lane without anything that rules had said in it."""

    async def load(self, session_id: str, lane: str, after: int | None = None) -> Loaded:
        loaded = await self.inner.log.load(session_id, lane, after)
        said = (r.FeedbackGiven, r.FeedbackSkipped, r.CompletionRefused, r.CompletionAccepted)
        entries = [e for e in loaded.entries if not isinstance(e.record, said)]
        return replace(loaded, snapshot=None, entries=tuple(entries))


class LosesUsage(BrokenStore):
    """Adds nothing to the usage that commits tell."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([replace(commit, used=()) for commit in commits])


class LosesSpending(BrokenStore):
    """Counts nothing of what commits reserve and spend of budgets."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([replace(commit, budgets=()) for commit in commits])


class OverwritesState(BrokenStore):
    """Has each value that is appended to a slice take the place of all others."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._alone(commit) for commit in commits])

    def _alone(self, commit: Commit) -> Commit:
        records = tuple(
            replace(e, op="put") if isinstance(e, r.StateChanged) and e.op == "append" else e
            for e in commit.records
        )
        if records == commit.records:
            return commit
        return replace(commit, records=records, body=encode(records))


class HidesWhatChildrenUsed(BrokenStore):
    """Writes down of no child what it has used."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._silent(commit) for commit in commits])

    def _silent(self, commit: Commit) -> Commit:
        records = tuple(
            replace(e, usage=r.NO_USAGE) if isinstance(e, r.SubagentCompleted) else e
            for e in commit.records
        )
        if records == commit.records:
            return commit
        return replace(commit, records=records, body=encode(records))


# Folds of the provider's outages, each in the place of the real one

REAL = dict(LANE_FACTS)


def forgets_with_each_message(lane: Lane, e: r.TurnStarted) -> Lane:
    """Has the provider's time begin anew for a message that stood behind."""
    return replace(REAL[r.TurnStarted](lane, e), outage=None)


def forgets_with_each_try(lane: Lane, e: r.ProviderStillUnavailable) -> Lane:
    """Has the provider's time begin anew whenever it fails."""
    lane = REAL[r.ProviderStillUnavailable](lane, e)
    assert lane.outage is not None
    return replace(lane, outage=replace(lane.outage, since=e.not_before))


def loses_patience(lane: Lane, e: r.ProviderUnavailable) -> Lane:
    """Takes an outage for an older one."""
    since = e.since - 40_000
    return REAL[r.ProviderUnavailable](lane, replace(e, since=since))


def keeps_the_news(lane: Lane, e: r.ProviderAvailable) -> Lane:
    """Does not notice that the provider is back."""
    return lane


def cannot_wait(breaker: Breaker, now: int) -> bool:
    """Probes a provider that is left alone, in the place of `Breaker.is_paused`."""
    return False


class ForgetsPins(BrokenStore):
    """Pins no lane to any deployment."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([replace(commit, pin=None) for commit in commits])


class KeepsTheRetired(BrokenStore):
    """Makes another deployment current, and leaves behind what was pinned to the one before."""

    async def retire(self, deployment: str, to: str) -> int | None:
        await self.inner.work.promote(to)
        return 0


class NeverShortens(BrokenStore):
    """Writes down of compactions that they left nothing out."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        return await self.inner.log.commit([self._whole(commit) for commit in commits])

    def _whole(self, commit: Commit) -> Commit:
        records = tuple(
            replace(e, until=0, keep=(), text="", results={}, shortened={})
            if isinstance(e, r.CompactionCompleted)
            else e
            for e in commit.records
        )
        if records == commit.records:
            return commit
        return replace(commit, records=records, body=encode(records))


class KeepsReservations(BrokenStore):
    """Returns nothing of what calls have reserved of budgets."""

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        kept = [replace(c, budgets=tuple(map(without_return, c.budgets))) for c in commits]
        return await self.inner.log.commit(kept)


def without_return(change: BudgetChange) -> BudgetChange:
    return change if change.is_asking else replace(change, reserved=NOTHING)


class IgnoresQueues(IgnoresLimits):
    """Lets every turn of a queue begin at once."""

    ignored = "queue:"


class KeepsOldSettings(BrokenStore):
    """Gives out the settings of a queue as they were at first."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._first: dict[str, Document] = {}

    async def get(self, kind: str, tenant: str, name: str) -> Document | None:
        found = await self.inner.document.get(kind, tenant, name)
        if kind != "queue" or found is None:
            return found
        return self._first.setdefault(name, found)
