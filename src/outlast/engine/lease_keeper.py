"""Keeps a worker's lease alive, in a thread of its own.

Owns the renewals and knows how fresh the lease is. Nothing here depends on the event loop: a tool
that blocks it for a minute must not lose its lanes to another worker while it still runs. What
follows from a lost lease is in `worker.py`.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from outlast.clock import Clock
from outlast.errors import StoreError
from outlast.log_context import get_logger
from outlast.store import Lease

log = get_logger("outlast.engine")


class LeaseKeeper:
    """Renews a lease three times in its length, and knows how fresh it is.

    `asked_at` is when the lease was asked for: the answer may have taken longer than it lasts.
    `counters` says what the worker has counted, for the registry.
    """

    def __init__(
        self,
        worker: str,
        lease: Lease,
        length: float,
        clock: Clock,
        on_lost: Callable[[], None],
        on_lapsed: Callable[[], None],
        on_drain: Callable[[], None],
        *,
        asked_at: float,
        counters: Callable[[], str] = str,
    ) -> None:
        self.worker = worker
        self._lease = lease
        self._length = length
        self._clock = clock
        self._on_lost = on_lost
        self._on_lapsed = on_lapsed
        self._on_drain = on_drain
        self._counters = counters
        self._drains = False
        self._confirmed = asked_at
        self._stopped = threading.Event()
        self._hurried = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to renew."""
        self._thread = threading.Thread(
            target=self._renew_repeatedly, name="outlast lease", daemon=True
        )
        self._thread.start()

    @property
    def is_confirmed(self) -> bool:
        """Whether the lease is fresh enough to begin something new."""
        # Boot time goes on while a machine sleeps, as the lease does in the store. A renewal is due
        # after each third of the length: after two thirds one is overdue, and what begins now might
        # still run when another worker takes the lane.
        return self._clock.boottime() - self._confirmed < self._length * 2 / 3

    def hurry(self) -> None:
        """Renew soon: this worker may have been told to drain. Many calls make one renewal."""
        self._hurried.set()

    def _renew_repeatedly(self) -> None:
        least, pause = min(1.0, self._length / 30), self._length / 3
        # However many hints there are, there is a pause between two renewals.
        while not self._stopped.wait(least):
            self._hurried.wait(pause - least)
            self._hurried.clear()
            if self._stopped.is_set() or (again := self.renew()) is None:
                return
            pause = again

    def renew(self) -> float | None:
        """Renew once; return how long that is good for, or None if the lease is lost."""
        # Before the question, as with the first lease: the answer may have been on its way for
        # long.
        asked = self._clock.boottime()
        try:
            renewal = self._lease.renew(self._counters())
        except StoreError as error:
            self._warn("the lease could not be renewed", error)
            # Soon: a store that was away for a moment must not cost the lease.
            return self._length / 30
        except Exception:  # without this thread the lease would never be confirmed again
            log.exception("the lease could not be renewed", extra={"worker": self.worker})
            return self._length / 30
        if not renewal.alive:
            self._give_up()
            return None
        self._confirmed = asked
        if renewal.lapsed:
            self._tell(self._on_lapsed)
        if renewal.draining and not self._drains:
            self._drains = True
            self._tell(self._on_drain)
        return self._length / 3

    def _give_up(self) -> None:
        """Free what this name may still hold, or it would have to wait for another lease."""
        # First: from here on nothing new begins on the event loop, whenever that hears of it.
        self._confirmed = float("-inf")
        self.release()
        self._tell(self._on_lost)

    def _tell(self, heard: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(heard)

    def release(self) -> None:
        """Show the worker as gone; where the store is away, the lease runs out by itself."""
        try:
            self._lease.release()
        except StoreError as error:
            self._warn("the lease could not be given up", error)

    def _warn(self, phrase: str, error: StoreError) -> None:
        log.warning(phrase, extra={"worker": self.worker, "code": error.code})

    async def end(self) -> None:
        """Stop renewing and show the worker as gone."""
        self._stopped.set()
        self._hurried.set()
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        if self._thread:
            # The thread may wait for a store that does not answer.
            self._thread.join(self._length / 2)
            if self._thread.is_alive():  # giving up the lease would wait for the same store
                log.warning("the lease is left to run out", extra={"worker": self.worker})
                return
        self.release()
