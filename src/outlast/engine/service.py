"""The one loop of everything that looks for work again and again.

Owns when a service looks: its pauses, its hints, its task, and the log line of a look that failed.
Refuses to know what is looked for: that is `run_once` of each service. See `worker.py` and
`maintenance.py` here, and the outbox dispatcher and the scheduler in `integration/`.
"""

import asyncio
from contextlib import suppress
from typing import Protocol

from outlast.clock import Clock
from outlast.errors import StoreError
from outlast.log_context import get_logger

log = get_logger("outlast.engine")


class Service(Protocol):
    """Something that is looked after again and again."""

    @property
    def interval(self) -> float:
        """Seconds to the next look. It is read after every look, so that a look can set it."""
        ...

    async def run_once(self) -> int:
        """Look once, and return how much there was to do."""
        ...


class ServiceLoop:
    """Runs one service until it is stopped: no failure of a look ends it.

    `pace` is the least number of seconds between two looks, however many hints come. `spread`
    lengthens each pause by up to so many seconds, at random: the workers of a fleet begin
    together, and would otherwise look at the same instants for ever.
    """

    def __init__(
        self, name: str, service: Service, clock: Clock, *, pace: float = 0.0, spread: float = 0.0
    ) -> None:
        self.name = name
        self._service = service
        self._clock = clock
        self._pace = pace
        self._spread = spread
        self._hinted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look now, and then again and again."""
        self._task = asyncio.create_task(self._run(), name=f"outlast {self.name}")

    def hint(self) -> None:
        """Look soon: there may be something to do."""
        self._hinted.set()

    async def stop(self) -> None:
        """Look no more. A look that is under way is cancelled."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            # Before the look, not after it: a hint that comes during a look asks for another.
            self._hinted.clear()
            try:
                await self._service.run_once()
            # A store that is away is told in one line, without the traceback of a mistake.
            except StoreError as error:
                log.warning("a service failed", extra={"service": self.name, "code": error.code})
            except Exception:
                log.exception("a service failed", extra={"service": self.name})
            await self._pause(self._service.interval + self._clock.jitter(self._spread))

    async def _pause(self, seconds: float) -> None:
        # Not to be interrupted by hints, which come in swarms where much is written.
        if self._pace:
            await asyncio.sleep(min(self._pace, seconds))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds - self._pace)):
                await self._hinted.wait()
