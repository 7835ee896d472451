"""What a running tool may do to its lane before it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.core.lane import Lane
from holdfast.core.name import webhook_name
from holdfast.core.outcome import tool_ended
from holdfast.core.policy import Policy
from holdfast.core.record import ToolProgress, ToolStepRecorded, WebhookOpened
from holdfast.core.request import Shown
from holdfast.core.result import Returned, is_contended, with_updates
from holdfast.core.slices import Slices
from holdfast.engine.owned import OwnedLane
from holdfast.store import Store, Transaction

PROGRESS_EVERY = 0.1


class Signal(Protocol):
    """Tells whether the call's turn is being cancelled."""

    @property
    def cancelled(self) -> bool: ...


class CallDesk:
    """One call's desk."""

    def __init__(
        self, lane: OwnedLane, signal: Signal, policy: Policy, store: Store, clock: Clock
    ) -> None:
        self._owned = lane
        self._signal = signal
        self._policy = policy
        self._store = store
        self._clock = clock
        self._last_progress = float("-inf")

    @property
    def lane(self) -> Lane:
        return self._owned.state

    @property
    def slices(self) -> Slices:
        return self._owned.slices

    @property
    def is_cancelled(self) -> bool:
        return self._signal.cancelled

    def now(self) -> int:
        return self._owned.now()

    def new_id(self, prefix: str) -> str:
        return self._clock.new_id(prefix)

    async def record_step(self, call_id: str, name: str, value: str) -> None:
        self._owned.write([ToolStepRecorded(call_id=call_id, name=name, value=value)])
        await self._flush()

    async def open_webhook(
        self, call_id: str, name: str, within: int, *, token: str = "", signer: str = ""
    ) -> str:
        token = token or self._clock.token()
        turn = self._owned.state.turn
        assert turn is not None
        if webhook_name(token) in turn.requests:
            return token
        earlier = (q for q in turn.requests.values() if (q.call_id, q.name) == (call_id, name))
        first = next(earlier, None)
        opened = WebhookOpened(
            request_id=webhook_name(token),
            call_id=call_id,
            attempt=turn.calls[call_id].attempt,
            name=name,
            expires_at=first.expires_at if first else self.now() + max(1, within),
            signer=signer,
        )
        self._owned.write([opened])
        await self._flush()
        return token

    async def relay(self, record: Shown) -> None:
        self._owned.write([record])
        await self._flush()

    async def progress(self, call_id: str, progress: str) -> None:
        if self._clock.monotonic() - self._last_progress < PROGRESS_EVERY:
            return
        self._last_progress = self._clock.monotonic()
        assert self._owned.state.turn is not None
        attempt = self._owned.state.turn.calls[call_id].attempt
        self._owned.write([ToolProgress(call_id=call_id, attempt=attempt, progress=progress)])
        await self._flush()

    async def _flush(self) -> None:
        await to_its_end(self._owned.flush())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        # The lane's lock comes first: a sibling's flush would wait for the database's only
        # writer while holding it, and this transaction could never be concluded.
        async with self._owned.lock, self._store.transaction() as transaction:
            yield transaction

    async def conclude(self, transaction: Transaction, end: Returned) -> None:
        assert self._owned.state.turn is not None
        call = self._owned.state.turn.calls[end.call_id]
        whole = with_updates(end, self.slices)
        records = list(tool_ended(self.lane, call, whole, self._policy, self.now()))
        contended = is_contended(end)
        await to_its_end(self._owned.conclude(transaction, records, of_newest=contended))

    async def find_token(self, token: str) -> str | None:
        """Return the session that a continuation token leads to."""
        return await self._store.find_token(self.lane.tenant, token)


async def to_its_end(commit: Coroutine[Any, Any, Any]) -> None:
    """Stay until it is known what became of a commit, even if the call is stopped meanwhile."""
    committing = asyncio.ensure_future(commit)
    committing.add_done_callback(look_at)
    try:
        await asyncio.shield(committing)
    except asyncio.CancelledError:
        await asyncio.wait([committing])
        raise


def look_at(commit: asyncio.Future[Any]) -> None:
    """See how one ended that nobody may wait for: a lost lane is told its owner as well."""
    if not commit.cancelled():
        commit.exception()
