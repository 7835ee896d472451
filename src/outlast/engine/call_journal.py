"""Records that a running tool may write: steps, progress, callbacks, a transaction.

Owns the part of the lane that one call may write to. Refuses a call that is no longer awaited:
its lane may have gone on without it. The promises to the tools' side are in `executor.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from outlast.clock import Clock
from outlast.core import codec
from outlast.core.instant import seconds
from outlast.core.lane import Lane
from outlast.core.name import callback_name
from outlast.core.outcome import tool_ended, wait_begins
from outlast.core.policy import Policy
from outlast.core.record import (
    AnyRecord,
    CallbackOpened,
    Failure,
    StepFailed,
    ToolProgress,
    ToolStepRecorded,
)
from outlast.core.request import close_scopes
from outlast.core.result import NewWait, Returned, is_contended, with_updates
from outlast.core.slice import Slices
from outlast.core.view import TOLD, told
from outlast.engine.call_tasks import RunningCall, to_its_end
from outlast.engine.coalesce import Coalescer
from outlast.engine.executor import CallSlot
from outlast.engine.lane_folds import LaneStale, insist
from outlast.engine.owned_lane import OwnedLane
from outlast.engine.settings import WorkerSettings
from outlast.errors import InvalidInput, NotInTransaction
from outlast.store import Store, Transaction

LONGEST = 5.0
"""How long a tool's transaction may be open, in seconds."""


class LaneJournal:
    """One call's journal. A call that is no longer awaited can write nothing."""

    def __init__(
        self,
        lane: OwnedLane,
        running: RunningCall,
        slot: CallSlot | None,
        policy: Policy,
        store: Store,
        clock: Clock,
        settings: WorkerSettings,
    ) -> None:
        self.slot = slot
        self._owned = lane
        self._running = running
        self._policy = policy
        self._store = store
        self._clock = clock
        self._settings = settings
        self._progress: Coalescer[ToolProgress] | None = None
        self._holds: dict[Transaction, LockHold] = {}

    @property
    def stop_grace(self) -> float:
        return seconds(self._settings.stop_grace)

    @property
    def lane(self) -> Lane:
        return self._owned.folds.state

    @property
    def slices(self) -> Slices:
        return self._owned.folds.slices

    @property
    def is_cancelled(self) -> bool:
        return self._running.is_cancelled

    @property
    def is_stopped(self) -> bool:
        return self._running.is_stopped

    def earliest(self) -> int:
        return self._owned.earliest()

    def latest(self) -> int:
        return self._owned.latest()

    def new_id(self, prefix: str) -> str:
        return self._clock.new_id(prefix)

    def jitter(self, seconds: float) -> float:
        return self._clock.jitter(seconds)

    def note(self, record: AnyRecord) -> None:
        self.check_awaited()
        self._owned.write([record])

    async def record(self, record: AnyRecord) -> None:
        await self._write(record)

    async def record_noted(self) -> None:
        self.check_awaited()
        if self._owned.is_ahead:
            await to_its_end(self._owned.flush())

    async def fail(self, error: Failure) -> None:
        turn = self._owned.folds.state.turn
        assert turn is not None
        await self._write(StepFailed(turn=turn.id, step=turn.step, error=error))
        self._owned.folds.wakeup.set()

    async def record_first(self, call_id: str, name: str, lost: tuple[str, ...]) -> None:
        def records(_: Slices) -> list[AnyRecord]:
            self.check_awaited()
            first = ToolStepRecorded(call_id=call_id, name=name, value="true")
            return [first, *close_scopes(self.lane, call_id, lost)]

        await to_its_end(self._insist(records))

    async def _insist(self, records: Callable[[Slices], list[AnyRecord]]) -> None:
        """Commit records that close requests. What was answered meanwhile has to be seen first."""
        while refused := await self._owned.attempt(records):
            # Nothing that is folded says what to do about another refusal: the lane is folded anew.
            if refused.reason != "arrivals":
                raise LaneStale(refused.reason)
            await self._owned.catch_up()

    async def open_callback(self, call_id: str, name: str, within: int) -> str:
        self.check_awaited()
        token = self._clock.token()
        turn = self._owned.folds.state.turn
        assert turn is not None
        earlier = (q for q in turn.requests.values() if (q.call_id, q.name) == (call_id, name))
        # Another attempt waits no longer than the first one would have: its time began when the
        # wait was first opened.
        first = next(earlier, None)
        opened = CallbackOpened(
            request_id=callback_name(token),
            call_id=call_id,
            attempt=turn.calls[call_id].attempt,
            name=name,
            expires_at=first.expires_at if first else self.latest() + max(1, within),
        )
        await self._write(opened)
        return token

    async def start_child(self, call_id: str, wait: NewWait) -> None:
        self.check_awaited()
        lane = self.lane
        assert lane.turn is not None
        assert wait.child is not None
        # The record of the wait and the child's first message are one commit: after a crash there
        # is no child without a wait for it, and no wait for a child that was never started.
        self._owned.write([*wait_begins(lane, lane.turn.calls[call_id], wait)])
        if not wait.child.url:
            self._owned.start(wait.child)
        await to_its_end(self._owned.flush())
        self._owned.folds.wakeup.set()  # a remote one is contacted

    async def progress(self, call_id: str, progress: str, name: str = "", done: int = 0) -> None:
        self.check_awaited()
        assert self._owned.folds.state.turn is not None
        attempt = self._owned.folds.state.turn.calls[call_id].attempt
        record = ToolProgress(
            call_id=call_id, attempt=attempt, progress=progress, name=name, done=done
        )
        codec.encode([record])  # refused here, where the tool hears of it; it is written later
        self._progress = self._progress or Coalescer(
            self._owned, self._running, seconds(self._settings.flush)
        )
        # Only the last sign of progress counts: those in between are never written.
        self._progress.pending[:] = [record]
        self._progress.flush_soon()
        await asyncio.sleep(0)  # a tool that does nothing else leaves others their turn

    async def end(self) -> None:
        """Leave the last sign of progress to the commit of what the call came to."""
        if self._progress:
            await self._progress.end()
            if self._running.is_awaited:
                self._owned.write(self._progress.pending)

    async def _write(self, record: AnyRecord) -> None:
        self.check_awaited()
        self._owned.write([record])
        await to_its_end(self._owned.flush())

    def check_awaited(self) -> None:
        if not self._running.is_awaited:
            raise asyncio.CancelledError  # once more, for a tool that did not heed the first

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with AsyncExitStack() as stack:
            transaction = await insist(self._clock, self._open, stack)
            try:
                yield transaction
            finally:
                del self._holds[transaction]

    async def _open(self, stack: AsyncExitStack) -> Transaction:
        """Open a transaction, to be left with the stack; while there is none, nothing is held.

        The lane's lock comes first: a sibling's flush would wait for the database's only writer
        while holding it, and this transaction could never be concluded.
        """
        async with AsyncExitStack() as opening:
            hold = await opening.enter_async_context(LockHold(self._owned.lock))
            transaction = await opening.enter_async_context(self._store.log.transaction(LONGEST))
            hold.limit(LONGEST)
            await stack.enter_async_context(opening.pop_all())
            self._holds[transaction] = hold
            return transaction

    async def conclude(self, transaction: Transaction, end: Returned) -> None:
        self.check_awaited()
        self._holds[transaction].keep()
        # From here on no timeout may cut it off: its outcome is in the transaction that is being
        # committed.
        self._running.end()
        assert self._owned.folds.state.turn is not None
        call = self._owned.folds.state.turn.calls[end.call_id]
        whole = with_updates(end, self.slices)
        records = list(tool_ended(self.lane, call, whole, self._policy, self.latest()))
        contended = is_contended(end)
        await to_its_end(self._owned.conclude(transaction, records, of_newest=contended))

    async def record_within(self, transaction: Transaction, record: AnyRecord) -> None:
        self.check_awaited()
        self._holds[transaction].keep()
        await to_its_end(self._owned.conclude(transaction, [record], of_newest=False))

    async def find_token(self, token: str) -> str | None:
        """Return the session that a continuation token leads to."""
        return await self._store.listing.find_token(self.lane.tenant, token)

    async def read_result(self, offset: int) -> str | None:
        lane = self.lane
        try:
            page = await self._store.log.read(lane.session, offset - 1, 1)
        except InvalidInput:  # beyond the end, or before the beginning
            return None
        found = (each for each in page.entries if each.offset == offset and each.lane == lane.name)
        record = next((each.record for each in found), None)
        return told(record)[0] if isinstance(record, TOLD) else None


class LockHold:
    """A hold on a lane's lock, let go when the transaction that it is for must have been undone.

    A tool that hangs in a transaction would otherwise keep its lane from hearing anything.
    """

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_held = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> LockHold:
        await self._lock.acquire()
        self._is_held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
        self._let_go()

    def limit(self, seconds: float) -> None:
        """Let go after some seconds."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._let_go)

    def keep(self) -> None:
        """Let go at the end only. Raises NotInTransaction if that is too late."""
        if not self._is_held:
            raise NotInTransaction(
                f"this transaction was open for more than {LONGEST:g} s and was undone;"
                " do less in it, and wait for nothing"
            )
        if self._timer:
            self._timer.cancel()

    def _let_go(self) -> None:
        if self._is_held:
            self._is_held = False
            self._lock.release()
