"""The dispatcher: takes outbox cursors that are due, and delivers many of them at once.

Runs in every worker of an app that has a consumer. Idle, it asks the store for one instant every
few seconds; busy, at most ten times a second. A cursor is settled in one write when its delivery
ends; if the process dies before, the hold on it expires and another worker takes it.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from outlast.clock import Clock
from outlast.core.instant import seconds
from outlast.engine.service import ServiceLoop
from outlast.errors import StoreError, UnknownSession
from outlast.integration.outbox.consumer import OutboxRoutes
from outlast.integration.outbox.delivery import LONGEST_RUN, OutboxDelivery
from outlast.integration.outbox.receiver_limit import LONGEST_WAIT, STALLED, ReceiverLimits
from outlast.integration.outbox.settings import WebhookSettings
from outlast.log_context import enter, get_logger
from outlast.store import DeadLetter, OutboxCursor, Store

log = get_logger("outlast.integration.outbox")

PACE = 0.1
"""The fewest seconds between two looks, however many hints arrive."""

HELD_BY_OTHERS = 1.0
PUT_OFF = 20.0
LAST_ROUND = 1.0
TO_SETTLE = 5.0


class OutboxDispatcher:
    """Delivers what is due, from `start` until `stop`."""

    def __init__(
        self, store: Store, clock: Clock, routes: OutboxRoutes, settings: WebhookSettings
    ) -> None:
        self.interval = self._poll = seconds(settings.poll)
        self._settings = settings
        self._store = store
        self._clock = clock
        self._routes = routes
        self._limits = ReceiverLimits(settings.at_once_per_receiver, self._begin, clock)
        # A cursor may be held for the queue, a run, and the look-up and post at the end of it.
        longest = LONGEST_WAIT + LONGEST_RUN + 2 * seconds(settings.timeout) + TO_SETTLE
        self._hold = int(longest * 1000)
        self._taken_at = clock.monotonic()
        self._deliveries: set[asyncio.Task[None]] = set()
        self._loop = ServiceLoop("outbox dispatcher", self, clock, pace=PACE)
        self._stop_listening: Callable[[], None] | None = None

    # Life

    def start(self) -> None:
        """Begin to look for cursors that are due."""
        self._stop_listening = self._store.work.listen(lambda *_: self._loop.hint())
        self._loop.start()

    async def stop(self) -> None:
        """Deliver what is due if that is quickly done, and give the rest back."""
        if self._stop_listening is None:
            return
        self._stop_listening()
        await self._loop.stop()
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_ROUND):
                while await self.deliver_due():
                    pass
        # Due at once for another worker: the holds on them would first have to run out.
        await self._put_off(self._limits.take_all(), 0.0)
        for delivery in self._deliveries:
            delivery.cancel()
        await asyncio.gather(*self._deliveries, return_exceptions=True)

    async def deliver_due(self) -> int:
        """Deliver all that is due now, and return how many cursors that were."""
        taken = await self._take()
        while self._deliveries:
            await asyncio.wait(self._deliveries)
        return taken

    # Cursors that are due

    async def run_once(self) -> int:
        """Begin to deliver what is due, as many cursors as fit; return how many those were."""
        self.interval, taken = self._poll, 0
        await self._put_off(self._limits.take_stalled(), PUT_OFF)
        due_at, free = await self._store.outbox.next_due_at(), self._free
        # Otherwise the next event, or the end of a delivery, gives a hint.
        if due_at is not None and free > 0:
            if (wait := self._wait_for(due_at)) > 0:
                self.interval = wait
            else:
                taken = await self._take()
                self.interval = 0.0 if taken == free else min(self._poll, HELD_BY_OTHERS)
        if self._limits.waiting:
            self.interval = min(self.interval, STALLED)
        return taken

    def _wait_for(self, due_at: int) -> float:
        """Return the seconds until an instant of the store.

        The store's clock may be set meanwhile, so cursors are taken from time to time whatever this
        says.
        """
        left = self._taken_at + self._poll - self._clock.monotonic()
        return min((due_at - self._store.clock.earliest()) / 1000, left)

    @property
    def _free(self) -> int:
        return self._settings.at_once - len(self._deliveries) - self._limits.waiting

    async def _take(self) -> int:
        self._taken_at = self._clock.monotonic()
        # No more than can begin: a cursor that is held here and waits is kept from a worker that
        # has room.
        taken = await self._store.outbox.take(self._free, self._hold)
        known = [cursor for cursor in taken if self._routes.knows(cursor.agent)]
        stalled = [
            cursor for cursor in known if not self._limits.add(cursor, self._receiver_name(cursor))
        ]
        await self._put_off(stalled, PUT_OFF)
        # Another app on this store has the agents of the others.
        await self._put_off([cursor for cursor in taken if cursor not in known], self._poll)
        return len(taken)

    def _receiver_name(self, cursor: OutboxCursor) -> str:
        receiver = self._routes.find(cursor)
        return receiver.name if receiver else cursor.name

    # Deliveries

    def _begin(self, cursor: OutboxCursor, receiver: str) -> None:
        task = asyncio.create_task(self._deliver(cursor), name="outlast outbox delivery")
        self._deliveries.add(task)
        task.add_done_callback(lambda task: self._end(task, receiver))

    def _end(self, task: asyncio.Task[None], receiver: str) -> None:
        self._deliveries.discard(task)
        self._limits.release(receiver)
        # There is room for another cursor, and the place at its receiver is free.
        self._loop.hint()

    async def _deliver(self, cursor: OutboxCursor) -> None:
        enter(session=cursor.session_id, agent=cursor.agent)
        receiver = self._routes.find(cursor)
        delivery = OutboxDelivery(cursor, receiver, self._settings, self._store, self._clock)
        delivery.again_at = self._store.clock.earliest()  # holds if this task is cancelled
        try:
            await delivery.run()
        except UnknownSession:
            return  # the session was erased, and the cursor with it
        except StoreError as error:
            log.warning("events could not be read", extra={"code": error.code})
            delivery.again_at = self._later(PUT_OFF)
        except Exception as error:
            log.exception("a delivery failed; it is tried again")
            delivery.break_off(error)
        # Also where it was cancelled: what was told is told once, whatever stopped the rest.
        finally:
            await self._settle(
                cursor,
                delivery.position,
                delivery.again_at,
                delivery.tries,
                delivery.error,
                delivery.dead,
            )

    def _later(self, pause: float) -> int:
        return self._store.clock.latest() + int(self._clock.jitter(pause) * 1000)

    async def _put_off(self, cursors: Iterable[OutboxCursor], pause: float) -> None:
        """Give cursors back as they were, for later."""
        settled = (
            self._settle(each, each.position, self._later(pause), each.tries, each.error)
            for each in cursors
        )
        await asyncio.gather(*settled)

    async def _settle(
        self,
        cursor: OutboxCursor,
        position: int,
        again_at: int | None,
        tries: int,
        error: str,
        dead: Iterable[DeadLetter] = (),
    ) -> None:
        """Write how far a cursor is and release it; if the store is away, its hold expires."""
        try:
            await self._store.outbox.settle(
                cursor,
                position=position,
                again_at=again_at,
                tries=tries,
                error=error,
                dead=tuple(dead),
            )
        except StoreError as away:
            log.warning("an outbox cursor could not be settled", extra={"code": away.code})
