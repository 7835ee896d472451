"""A claimed lane, and the only way to write to it.

Owns the draft of the next commit, the commits themselves, and the lane's permits. A record is
folded when it is written and reaches the log with the next `flush`, all in one commit; a record
whose commit may be refused (`attempt`, `conclude`) is folded once it is in the log. Refuses to
know what to write: `lane_runner.py` does. What the log comes to is in `lane_folds.py`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core import codec
from outlast.core import record as r
from outlast.core.action import Park
from outlast.core.amount import BudgetChange, BudgetHold, BudgetKey, BudgetTerms
from outlast.core.budget import active_time, session_terms
from outlast.core.budget_charge import reserves
from outlast.core.budget_fold import changes_of, with_terms
from outlast.core.event import has_to_tell
from outlast.core.fold import fold
from outlast.core.index import index, makes_progress, status_of
from outlast.core.lane import CONTENDED, PROVIDER, RUNNING, UNDONE, Lane, Turn
from outlast.core.limit import Bound, freed_by
from outlast.core.name import is_tool_call, place_names
from outlast.core.outcome import opening
from outlast.core.record import AnyRecord
from outlast.core.result import ChildEnd, NewChild
from outlast.core.slice import Slices
from outlast.core.usage import usage_of
from outlast.engine.commit_draft import CHARGES, HOLDS, CommitDraft, effect_of
from outlast.engine.counters import WorkerCounters
from outlast.engine.lane_folds import LaneFolds, LaneLost, LaneStale, changes_slices, insist
from outlast.engine.pin import NO_PINS, PinRule
from outlast.engine.session_message import TOLD_TO_OTHERS, SessionMessages
from outlast.errors import StoreUnavailable
from outlast.store import (
    Admission,
    Claim,
    Commit,
    Committed,
    Permit,
    PermitRequest,
    Pin,
    Refused,
    Store,
    Transaction,
)

NOTED = HOLDS | TOLD_TO_OTHERS | CHARGES
"""The records that change something besides the log."""


class TransactionUndone(Exception):
    """A tool's transaction was undone, for the reason given; nothing else has changed."""


class RollbackRefused(TransactionUndone):
    """It was, because it rolls state back and another lane has an open turn."""


class OwnedLane:
    """One claimed lane. `lock` is held during a commit, so only one is under way at a time."""

    def __init__(
        self,
        claim: Claim,
        worker: str,
        store: Store,
        clock: Clock,
        counters: WorkerCounters,
        pins: PinRule = NO_PINS,
    ) -> None:
        self.session_id = claim.session_id
        self.name = claim.lane
        self.agent = claim.agent
        self.model = ""
        """The name of the model that it asks; the runner says it."""
        self.worker = worker
        self.fence = claim.fence
        self.number = claim.number
        self.epoch = claim.epoch
        self.deaths = claim.deaths
        """How many owners the lane has lost without getting on."""
        self._size = claim.size
        self.folds = LaneFolds(claim.session_id, claim.lane, store, clock)
        self.lock = asyncio.Lock()
        self._draft = CommitDraft()
        self._permits = set(claim.permits)
        self._places: set[str] = set()
        self._evidence = claim.evidence
        self._pins, self._pin = pins, claim.pin
        self._store = store
        self._clock = clock
        # The store's own, and not by a method of the lane: a step asks for them nine times.
        self.earliest, self.latest = store.clock.earliest, store.clock.latest
        self._clock_date = store.clock.date
        self._counters = counters
        self._step_began = 0
        self.agent_budget: BudgetTerms | None = None
        """What a session of the agent may use that says nothing itself; the runner says it."""

    @cached_property
    def _messages(self) -> SessionMessages:
        return SessionMessages(self._clock, self.date, self._pins)

    def date(self) -> int:
        """Return the date of what is written now; it is never before that of the last record."""
        now, last = self._clock_date(), self.folds.last_at
        return now if now > last else last

    @property
    def size(self) -> int:
        """How many bytes the session has, as far as is known here, with what is yet to commit."""
        return self._size + len(self._draft.body)

    # Owning

    async def renew(self, claim: Claim, worker: str) -> None:
        """Own the lane again, from what is still in memory and what came since.

        Raises HistoryChanged if what is in memory is not what the log says.
        """
        self.fence, self.worker, self.epoch = claim.fence, worker, claim.epoch
        self.deaths, self._size = claim.deaths, claim.size
        self._permits, self._evidence = set(claim.permits), claim.evidence
        self._places.clear()
        self._pin = claim.pin
        # An arrival that set it under the last claim is folded in by `catch_up`.
        self.folds.wakeup.clear()
        await self.catch_up()

    async def reload(self) -> None:
        """Forget what is in memory and fold the log again, under the same fence."""
        # A commit that is under way would land in folds that have been forgotten.
        async with self.lock:
            self.folds.forget()
            self._draft = CommitDraft()
        await self.folds.load()

    async def catch_up(self) -> None:
        """Fold in what has arrived since the last look."""
        async with self.lock:
            await self.folds.catch_up(self._draft.records)

    def take_over(self, cut_off: Callable[[Lane], Iterable[AnyRecord]]) -> None:
        """Record a takeover if the previous owner left a turn open.

        `cut_off` makes the records of the model calls that this cuts off: between turns, too, where
        one may have been under way that sums up what the view leaves out.
        """
        state = self.folds.state
        turn = state.turn
        if turn is None:
            self.write([*cut_off(state)])
            return
        if state.waiting and not is_asking(turn) and not turn.handed_back:
            return
        taken = r.LaneTakenOver(
            worker=self.worker,
            fence=self.fence,
            since=self.date(),
            spent=active_time(state, max(self.folds.last_at, turn.since)),
            graceful=turn.handed_back,
            evidence="handed_back" if turn.handed_back else self._evidence,
            deployment=self._pins.deployment,
        )
        self.write([*cut_off(state), taken])

    # Writing

    def write(self, records: Sequence[AnyRecord]) -> None:
        """Fold records now; they are in the log after the next flush.

        Raises NotEncodable, having written none, if one of them cannot be stored.
        """
        self._draft.add(records)
        # Of a step's records few mean anything besides: for the others this is the whole cost.
        if not self._permits and NOTED.isdisjoint(map(type, records)):
            self.folds.fold(records)
            return
        for record in records:
            self._note(record, self._draft)
            self.folds.fold((record,))

    def _note(self, record: AnyRecord, draft: CommitDraft) -> None:
        """Add to a draft what a record means besides, for a lane as it was before the record."""
        state, kind = self.folds.state, type(record)
        if kind in HOLDS and (effect := effect_of(state, record)):
            draft.effects.append(effect)
        if self._permits:
            draft.frees += freed_by(record, self._permits)
        if kind in TOLD_TO_OTHERS:
            draft.sends += self._messages.about(record, state)
        if kind in CHARGES:
            draft.budgets.append(record)

    def start(
        self, child: NewChild, share: BudgetTerms | None = None, hold: BudgetHold | None = None
    ) -> None:
        """Start a child with the next flush; the call that waits for it has just been written.

        Its `share` of the turn's budget is held here until it has ended.
        """
        state = self.folds.state
        request_id = request_of(state, child)
        if hold:
            # In the commit that starts the child, so that a crash in between leaves no share that
            # is held nowhere.
            self.write([reserves(state, request_id, hold, self.date())])
        self._draft.sends.append(self._messages.start(state, child, request_id, share))

    def report(self, end: ChildEnd) -> None:
        """Tell the parent, with the next flush, what this session came to."""
        self._draft.sends += self._messages.report(self.folds.state, end)

    @property
    def is_ahead(self) -> bool:
        """Say whether something was written that is not in the log yet."""
        return bool(self._draft.records)

    def is_ahead_by(self, kind: type[AnyRecord]) -> bool:
        """Say whether a record of a kind was written that is not in the log yet."""
        return kind in map(type, self._draft.records)

    async def flush(self) -> int:
        """Commit what was written; return the offset of its first record, 0 if there was none.

        Raises LaneStale if an arrival stands against it, which the folds have not seen.
        """
        async with self.lock:
            draft = self._draft
            if not draft.records:
                return 0
            # What is written while the commit is under way goes into a draft of its own, for the
            # next one.
            self._draft, number = CommitDraft(), self.number
            try:
                result = await self._commit(self._prepare(draft))
            except BaseException:
                if self.number == number:  # nothing that was written since may go without it
                    self._draft = draft.then(self._draft)
                raise
            if type(result) is Refused:
                raise LaneStale(result.reason)
            assert isinstance(result, Committed)
            return result.first_offset

    async def attempt(
        self, make: Callable[[Slices], Iterable[AnyRecord]], arrivals: int | None = None
    ) -> Refused | None:
        """Commit records by themselves; return why not, if another session was quicker.

        They are made from the newest slices, anew while other lanes are quicker. What was decided
        when so many `arrivals` were folded in is refused as well, if there are more by now.
        """
        return await self._attempt(lambda slices: self._draft_of([*make(slices)]), arrivals)

    async def start_with_shares(
        self,
        make: Callable[[Slices], Iterable[AnyRecord]],
        children: Sequence[NewChild],
        share: BudgetTerms,
        hold: BudgetHold,
    ) -> Refused | None:
        """Start children with the records of the call that waits for them, and hold their shares.

        Refused if another lane or a tool has reserved of the same budgets meanwhile.
        """
        return await self._attempt(
            lambda slices: self._draft_with_children([*make(slices)], children, share, hold)
        )

    async def _attempt(
        self, make: Callable[[Slices], CommitDraft], arrivals: int | None = None
    ) -> Refused | None:
        await self.flush()
        async with self.lock:
            if arrivals is not None and arrivals != self.folds.arrivals:
                return Refused("arrivals")
            while True:
                draft = make(self.folds.slices)
                commit = self._prepare(draft, unfolded=draft.records, of_newest=True)
                result = await self._commit(commit, unfolded=draft.records)
                if isinstance(result, Committed):
                    return None
                if result.reason != "slices_changed":
                    return result
                await self.folds.catch_up_slices()

    def _draft_with_children(
        self,
        records: list[AnyRecord],
        children: Sequence[NewChild],
        share: BudgetTerms,
        hold: BudgetHold,
    ) -> CommitDraft:
        state = self.folds.state
        for record in records:
            state = fold(state, record)
        sends: list[Admission] = []
        for child in children:
            request_id = request_of(state, child)
            held = reserves(state, request_id, hold, self.date())
            records.append(held)
            state = fold(state, held)
            sends.append(self._messages.start(state, child, request_id, share))
        draft = self._draft_of(records)
        draft.sends += sends
        return draft

    async def conclude(
        self, transaction: Transaction, records: Sequence[AnyRecord], *, of_newest: bool
    ) -> None:
        """Write records in a tool's own transaction. The caller holds the lane's lock.

        Raises TransactionUndone if the transaction was, also where the records were made
        `of_newest` slices and another lane changed these meanwhile.
        """
        head = self.folds.head
        apart = self._draft_of(records)
        written, self._draft = self._draft, CommitDraft()
        commit = self._prepare(written.then(apart), unfolded=apart.records, of_newest=of_newest)
        has_landed = False
        try:
            result = await transaction.commit(commit)
            has_landed = isinstance(result, Committed)
        # Not asked again as other commits are: the user's own statements are in it, and are gone.
        except StoreUnavailable:
            raise LaneLost from None  # only the log knows what became of it: claim it again
        finally:
            # The tool's transaction was undone, what others had written was not: it goes with the
            # next commit.
            if not has_landed:
                self._draft = written.then(self._draft)
        if isinstance(result, Refused):
            self._refuse(result)
            await self._enter_epoch(result)
            self.folds.take_in(result.arrivals, self._draft.records)
            await self.folds.catch_up_slices()
            if result.reason == "turns_open":
                raise RollbackRefused
            is_contended = result.reason not in ("undone", "history_changed")
            raise TransactionUndone(CONTENDED if is_contended else UNDONE)
        self._land(commit, result, apart.records)
        await self.folds.look_between(head, result, self._draft.records)
        if commit.index.changes_slices and changes_slices(self._draft.records):
            # A sibling call changed slices meanwhile: that is folded, but later in the log.
            await self.folds.reorder_slices(self._draft.records)

    def _draft_of(self, records: Sequence[AnyRecord]) -> CommitDraft:
        """Return a draft of records that are not folded, so that a refusal leaves no trace."""
        draft = CommitDraft()
        draft.add(records)
        for record in records:
            self._note(record, draft)
        return draft

    # Giving back

    async def rest(self, park: Park) -> bool:
        """Give the lane back; return False if something came that it has to look at first."""
        decided_at = self.folds.head
        async with self.lock:
            if self.folds.head != decided_at:
                return False  # folded in with a commit that was under way: decide anew
            awaits_permit, awaited = park.keeps_permits, park.budgets
            parting = CommitDraft()
            parting.add(opening(self.folds.state, park, self.date()))
            # A lane that rests has no call that could use a permit; only one that waits for a
            # permit keeps its place in the queue.
            parting.frees += self._abandoned_permits() if awaits_permit else self._permits
            if PROVIDER in park.wait and self.folds.state.turn:
                # In a queue it does not stand in the way of turns whose models answer.
                parting.frees += place_names(self.folds.state.turn.id) & self._permits
            return await self._release(
                parting, park.until or None, awaits_permit=awaits_permit, awaits_budgets=awaited
            )

    def _abandoned_permits(self) -> set[str]:
        """Return tool calls with permits whose answer was lost before it was committed.

        The lane would wait for a permit that such a call holds, and that is never given back.
        """
        turn = self.folds.state.turn
        calls = turn.calls if turn else {}
        return {name for name in self._permits if is_tool_call(name) and name not in calls}

    async def hand_back(self, cut_off: Callable[[Lane], Iterable[AnyRecord]]) -> None:
        """Give the lane back as it is, for another worker to go on with at once."""
        now, state = self.date(), self.folds.state
        parting = CommitDraft()
        left = [*cut_off(state)]
        parting.budgets += [each for each in left if type(each) in CHARGES]
        if state.turn and (not state.waiting or is_asking(state.turn)):
            left += [
                r.LaneTakenOver(
                    worker=self.worker,
                    fence=self.fence,
                    since=now,
                    spent=active_time(state, now),
                    graceful=True,
                    evidence="handed_back",
                )
            ]
        parting.add(left)
        async with self.lock:
            # Arrivals refuse it only until they are folded in; the next owner takes them.
            while not await self._release(parting, self.earliest()):
                pass

    async def _release(
        self,
        parting: CommitDraft,
        ready_at: int | None,
        *,
        awaits_permit: bool = False,
        awaits_budgets: tuple[tuple[BudgetKey, int], ...] = (),
    ) -> bool:
        """Commit what was written and give the lane back. The caller holds the lane's lock."""
        written, self._draft = self._draft, CommitDraft()
        before = self.folds.state
        # Folded first: the lane's row tells of a lane at rest, which it is only after these
        # records.
        self.folds.fold(parting.records)
        commit = self._prepare(
            written.then(parting), ready_at=ready_at, release=True, awaits_permit=awaits_permit
        )
        if awaits_budgets:
            commit = replace(commit, awaits_budgets=awaits_budgets)
        result = await self._commit(commit)
        if isinstance(result, Committed):
            return True
        if result.reason != "arrivals":
            raise LaneStale(result.reason)
        # The records of the parting were refused with it. `decide` may want another rest by now.
        self.folds.state, self._draft = before, written.then(self._draft)
        await self.folds.catch_up(self._draft.records)
        return False

    # Permits

    def has_place(self, turn: str) -> bool:
        """Say whether a turn has been given its place in the session's queue, and has it still."""
        return turn in self._places

    def take_place(self, turn: str) -> None:
        """Note that a turn has its place: all that it asked for is granted."""
        self._places.add(turn)

    def has_permit(self, call_id: str) -> bool:
        """Say whether a call has a permit, or waits for one."""
        return call_id in self._permits

    def return_permit(self, call_id: str) -> None:
        """Give back, with the next commit, the permit of a call that does not begin after all."""
        if call_id in self._permits:
            self._draft.frees.append(call_id)

    async def acquire(
        self, bounds: Mapping[str, tuple[Bound, ...]], ahead: int = 0
    ) -> dict[str, Permit]:
        """Ask for the permits of calls, by their ids. Raises LaneLost if the lane is another's.

        Those that have to wait are so many milliseconds `ahead` of their time.
        """
        requests = [
            PermitRequest(
                session_id=self.session_id,
                lane=self.name,
                worker=self.worker,
                fence=self.fence,
                call_id=call_id,
                bounds=limits,
                ahead=ahead,
            )
            for call_id, limits in bounds.items()
        ]
        permits: dict[str, Permit] = {}
        async with self.lock:
            # A call that gave its permit back and begins again in the same commit keeps it.
            self._draft.keep_permits(bounds)
            self._permits |= bounds.keys()
            results = await insist(self._clock, self._store.limit.acquire, requests)
        # A refusal has no other cause than another fence.
        for call_id, permit in zip(bounds, results, strict=True):
            if isinstance(permit, Refused):
                raise LaneLost
            permits[call_id] = permit
        return permits

    # Committing

    def _prepare(
        self,
        draft: CommitDraft,
        *,
        ready_at: int | None = 0,
        release: bool = False,
        awaits_permit: bool = False,
        unfolded: Sequence[AnyRecord] = (),
        of_newest: bool = False,
    ) -> Commit:
        """Return a commit; made `of_newest` slices it is refused if others changed them since.

        The lane's row tells of the lane as it is after the commit, with what is `unfolded` of it.
        """
        state, records = self.folds.state, draft.records
        for record in unfolded:
            state = fold(state, record)
        snapshot, slices = self.folds.snapshots
        changes = index(records)
        is_of_newest = of_newest and changes.changes_slices
        return Commit(
            session_id=self.session_id,
            lane=self.name,
            worker=self.worker,
            fence=self.fence,
            number=self.number,
            seen=self.folds.head,
            epoch=self.epoch,
            at=self.date(),
            records=tuple(records),
            body=codec.array_of(len(records), draft.body),
            index=changes,
            status=status_of(state),
            turn=state.turn.id if state.turn else "",
            wait=state.waiting if release else (),
            tells=has_to_tell(records, state.tells),
            ready_at=ready_at,
            release=release,
            awaits_permit=awaits_permit,
            slices_seen=self.folds.slices_seen if is_of_newest else None,
            snapshot=snapshot,
            slices=slices,
            effects=tuple(draft.effects),
            frees=tuple(sorted(set(draft.frees))) if draft.frees else (),
            sends=tuple(draft.sends),
            deaths=self._deaths_after(records) if self.deaths else None,
            used=usage_of(records),
            pin=self._pin_after(state) if self._pins.deployment or self._pin.deployment else None,
            budgets=self._budget_changes(draft) if draft.budgets else (),
            asks_budgets=of_newest and bool(draft.budgets),
        )

    def _pin_after(self, state: Lane) -> Pin | None:
        """Return what the lane is to be pinned to from a commit on; None if it is already."""
        wanted = self._pins.after(state)
        return None if wanted == self._pin else wanted

    def _budget_changes(self, draft: CommitDraft) -> tuple[BudgetChange, ...]:
        changes = changes_of(draft.budgets)
        terms = session_terms(self.folds.state, self.agent_budget)
        return with_terms(changes, terms) if terms else changes

    def _deaths_after(self, records: Sequence[AnyRecord]) -> int | None:
        """Return how many deaths still count once records are written; None for no change.

        A failed turn makes up for one death: the next turn is tried, and fails if it costs another.
        """
        if any(type(record) is r.TurnFailed for record in records):
            return self.deaths - 1
        return 0 if makes_progress(records) and not self.folds.state.blocked else None

    async def _commit(
        self, commit: Commit, unfolded: Sequence[AnyRecord] = ()
    ) -> Committed | Refused:
        """Write a commit, and fold its `unfolded` records. Raises LaneLost if it is another's."""
        head = self.folds.head
        [result] = await insist(self._clock, self._store.log.commit, [commit])
        # The same records, as far as they still mean the same: only what the commit says it has
        # seen is brought up to date.
        while isinstance(result, Refused):
            if not await self._enter_epoch(result):
                if not is_only_late(commit, result):
                    self._refuse(result)
                    return result
                self.folds.take_in(result.arrivals, self._draft.records)
            commit = replace(commit, seen=self.folds.head, epoch=self.epoch)
            [result] = await insist(self._clock, self._store.log.commit, [commit])
        self._land(commit, result, unfolded)
        # Something stands between: arrivals, or what another lane of the session has written.
        if result.first_offset > head + 1:
            await self.folds.look_between(head, result, self._draft.records)
        return result

    async def _enter_epoch(self, refused: Refused) -> bool:
        """Go on in another epoch of the database, if one is why a commit was refused.

        The lane's folds are compared with the log of the new epoch. If nothing is missing there, as
        with a synchronous standby, calls go on undisturbed; else this raises HistoryChanged.
        """
        if refused.reason != "history_changed":
            return False
        await self.folds.confirm()
        self.epoch = refused.epoch
        return True

    def _refuse(self, refused: Refused) -> None:
        self._counters.refused()
        if refused.reason == "lease_lost":
            raise LaneLost

    def _land(self, commit: Commit, result: Committed, unfolded: Sequence[AnyRecord]) -> None:
        self.number += 1
        self._size += len(commit.body)
        if commit.deaths is not None:
            self.deaths = commit.deaths
        self._step_began = self._counters.committed(
            commit, result.at, self._step_began, self.agent, self.model
        )
        if commit.frees:
            self._permits.difference_update(commit.frees)
            self._places.difference_update(commit.frees)
        if commit.pin:
            self._pin = commit.pin
        self.folds.land(commit, result, unfolded, self._draft.records)


def request_of(lane: Lane, child: NewChild) -> str:
    """Return the request by which a lane waits for a child."""
    assert lane.turn is not None
    awaited = lane.turn.requests.values()
    return next(q.request_id for q in awaited if q.child == child.session_id)


def is_asking(turn: Turn) -> bool:
    """Say whether the model is being asked, as it may be while the lane waits for its provider."""
    return turn.model is not None and turn.model.status == RUNNING


def is_only_late(commit: Commit, refused: Refused) -> bool:
    """Say whether a refused commit may be made as it is, once what has arrived is folded in.

    It closes a request that was answered meanwhile, and nothing waits for the answer any more.
    Only a request that is closed because its time is up was closed too early.
    """
    if commit.release or not refused.arrivals:
        return False
    return all(closed.how != "expired" for closed in commit.index.closed)
