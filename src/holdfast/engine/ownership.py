"""A worker's lease, kept alive by a thread of its own.

A tool that blocks the event loop for a minute must not lose its lanes to another
worker while it still runs: so nothing here depends on the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from holdfast.clock import Clock
from holdfast.errors import StoreError
from holdfast.store import Lease

log = logging.getLogger("holdfast.engine")


class Ownership:
    """Renews a lease three times in its length, and knows how fresh it is."""

    def __init__(
        self, lease: Lease, length: float, clock: Clock, on_lost: Callable[[], None]
    ) -> None:
        self._lease = lease
        self._length = length
        self._clock = clock
        self._on_lost = on_lost
        self._confirmed = clock.monotonic()
        self._stopped = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to renew."""
        self._thread = threading.Thread(
            target=self._renew_repeatedly, name="holdfast lease", daemon=True
        )
        self._thread.start()

    @property
    def is_confirmed(self) -> bool:
        """Whether the lease is fresh enough to begin something new."""
        return self._clock.monotonic() - self._confirmed < self._length * 2 / 3

    def _renew_repeatedly(self) -> None:
        pause: float | None = self._length / 3
        while pause is not None and not self._stopped.wait(pause):
            pause = self.renew()

    def renew(self) -> float | None:
        """Renew once; return how long that is good for, or None if the lease is lost."""
        asked = self._clock.monotonic()
        try:
            alive = self._lease.renew()
        except StoreError as error:
            log.warning("the lease could not be renewed", extra={"code": error.code})
            return self._length / 30
        if not alive:
            self._give_up()
            return None
        self._confirmed = asked
        return self._length / 3

    def _give_up(self) -> None:
        """Free what this name may still hold, or it would have to wait for another lease."""
        self.release()
        self._loop.call_soon_threadsafe(self._on_lost)

    def release(self) -> None:
        """Show the worker as gone; where the store is away, the lease runs out by itself."""
        try:
            self._lease.release()
        except StoreError as error:
            log.warning("the lease could not be given up", extra={"code": error.code})

    async def end(self) -> None:
        """Stop renewing and show the worker as gone."""
        self._stopped.set()
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        if self._thread:
            self._thread.join()
        self.release()
