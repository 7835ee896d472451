"""The courier: takes outbox cursors that have something to tell, and visits many at once.

Runs in every worker of an app that has somebody to tell. Idle, it asks the store for one
instant every few seconds; busy, at most ten times a second. Whatever becomes of a visit, its
outbox cursor is given back in one write; should the process die before, when its hold is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from outlast.clock import Clock
from outlast.engine.service import ServiceLoop
from outlast.errors import StoreError, UnknownSession
from outlast.integration.outbox.delivery import VISIT, OutboxDelivery
from outlast.integration.outbox.receiver_limit import LONGEST_WAIT, STUCK, ReceiverLimits
from outlast.integration.outbox.route import OutboxRoutes
from outlast.log_context import enter, get_logger
from outlast.net.client import GuardedClient
from outlast.store import DeadLetter, OutboxCursor, Store

log = get_logger("outlast.integration.outbox")

PACE = 0.1
"""Seconds between two looks, however much is heard."""

HELD_BY_OTHERS = 1.0
PUT_OFF = 20.0
LAST_ROUND = 1.0
TO_SETTLE = 5.0


class OutboxDispatcher:
    """Tells what there is to tell, for as long as it is started."""

    def __init__(
        self, store: Store, clock: Clock, book: OutboxRoutes, outbound: GuardedClient | None = None
    ) -> None:
        settings = book.settings
        self.interval = self._poll = settings.poll
        self._store = store
        self._clock = clock
        self._book = book
        self._outbound = outbound or GuardedClient(
            allow_private=settings.allow_private, timeout=settings.timeout, tls=settings.tls
        )
        self._at_once = settings.at_once
        self._lobby = ReceiverLimits(settings.at_once_per_receiver, self._begin, clock)
        # The line, a visit, the look-up and the post that it may begin at its very end.
        longest = LONGEST_WAIT + VISIT + 2 * settings.timeout + TO_SETTLE
        self._hold = int(longest * 1000)
        self._asked = clock.monotonic()
        self._visits: set[asyncio.Task[None]] = set()
        self._loop = ServiceLoop("outbox dispatcher", self, clock, pace=PACE)
        self._stop_listening: Callable[[], None] | None = None

    # Life

    def start(self) -> None:
        """Begin to look for what is due."""
        self._stop_listening = self._store.listen(lambda *_: self._loop.hint())
        self._loop.start()

    async def stop(self) -> None:
        """Tell what is due if that is quickly done, and give the rest back."""
        if self._stop_listening is None:
            return
        self._stop_listening()
        await self._loop.stop()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_ROUND):
                while await self.deliver_due():
                    pass
        await self._put_off(self._lobby.clear(), 0.0)
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    async def deliver_due(self) -> int:
        """Deliver what is due now to its end, and return how many outbox cursors that were."""
        taken = await self._take()
        while self._visits:
            await asyncio.wait(self._visits)
        return taken

    # What is due

    async def run_once(self) -> int:
        """Begin to deliver what is due, as far as there is room; return how many cursors."""
        self.interval, taken = self._poll, 0
        await self._put_off(self._lobby.send_away(), PUT_OFF)
        due_at, room = await self._store.next_due_at(), self._room
        if due_at is not None and room > 0:  # else a hint comes with more, or with more room
            if (wait := self._wait_for(due_at)) > 0:
                self.interval = wait
            else:
                taken = await self._take()
                self.interval = 0.0 if taken == room else min(self._poll, HELD_BY_OTHERS)
        if self._lobby.waiting:
            self.interval = min(self.interval, STUCK)
        return taken

    def _wait_for(self, due_at: int) -> float:
        """Return the seconds until an instant of the store's, which may have another clock: so
        it is asked itself from time to time."""
        left = self._asked + self._poll - self._clock.monotonic()
        return min((due_at - self._clock.now()) / 1000, left)

    @property
    def _room(self) -> int:
        return self._at_once - len(self._visits) - self._lobby.waiting

    async def _take(self) -> int:
        self._asked = self._clock.monotonic()
        taken = await self._store.take_cursors(self._room, self._hold)
        known = [cursor for cursor in taken if self._book.knows(cursor.agent)]
        away = [cursor for cursor in known if not self._lobby.let_in(cursor, self._name(cursor))]
        await self._put_off(away, PUT_OFF)
        # Another app on this store knows whose they are.
        await self._put_off([cursor for cursor in taken if cursor not in known], self._poll)
        return len(taken)

    def _name(self, cursor: OutboxCursor) -> str:
        addressee = self._book.find(cursor)
        return addressee.receiver if addressee else cursor.name

    # Visits

    def _begin(self, cursor: OutboxCursor, receiver: str) -> None:
        task = asyncio.create_task(self._visit(cursor), name="outlast webhook")
        self._visits.add(task)
        task.add_done_callback(lambda task: self._end(task, receiver))

    def _end(self, task: asyncio.Task[None], receiver: str) -> None:
        self._visits.discard(task)
        self._lobby.leave(receiver)
        self._loop.hint()

    async def _visit(self, cursor: OutboxCursor) -> None:
        enter(session=cursor.session_id, agent=cursor.agent)
        visit = OutboxDelivery(cursor, self._store, self._clock, self._outbound, self._book)
        visit.again_at = self._later(0.0)  # if we are stopped
        try:
            await visit.run()
        except UnknownSession:
            return  # it was erased, and the outbox cursor with it
        except StoreError as error:
            log.warning("a webhook could not be read", extra={"code": error.code})
            visit.again_at = self._later(PUT_OFF)
        except Exception:
            log.exception("a webhook cannot go on; it is tried again")
            visit.again_at = self._later(PUT_OFF)
        finally:
            await self._give_back(
                cursor, visit.position, visit.again_at, visit.tries, visit.error, visit.dead
            )

    def _later(self, pause: float) -> int:
        return self._clock.now() + int(self._clock.jitter(pause) * 1000)

    async def _put_off(self, cursors: Iterable[OutboxCursor], pause: float) -> None:
        """Give outbox cursors back as they were, for later."""
        backs = (
            self._give_back(each, each.position, self._later(pause), each.tries, each.error)
            for each in cursors
        )
        await asyncio.gather(*backs)

    async def _give_back(
        self,
        cursor: OutboxCursor,
        position: int,
        again_at: int | None,
        tries: int,
        error: str,
        dead: Iterable[DeadLetter] = (),
    ) -> None:
        """Settle an outbox cursor; where the store is away, its hold ends by itself."""
        try:
            await self._store.settle_cursor(
                cursor,
                position=position,
                again_at=again_at,
                tries=tries,
                error=error,
                dead=tuple(dead),
            )
        except StoreError as away:
            log.warning("a webhook could not be settled", extra={"code": away.code})
