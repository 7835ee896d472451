"""Signs of life: advisory locks, which end with the connection that holds them.

A worker's sign is a lock with its number, held on one connection of this process and on that of the
worker's lease (`worker_lease.py`). A pooler's connections outlive the process, so there is no sign
behind one; then the lease decides. The process's connection also receives hints (`notify.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import psycopg

from outlast.clock import Clock
from outlast.errors import StoreError, StoreUnavailable
from outlast.stores.postgres.error import explain
from outlast.stores.postgres.pipeline import PipelinedConnection, Rows
from outlast.stores.postgres.reconnect import FIRST_PAUSE, LONGEST_PAUSE, PATIENCE
from outlast.stores.postgres.statement import Query, Statement
from outlast.stores.postgres.url import StoreAddress

log = logging.getLogger("outlast.postgres")

MISSING_FOR = 0.3
LONG_GONE = 24 * 3_600_000


class HeartbeatConnection:
    """This process's own connection: it shows the workers' signs and receives hints.

    When it is lost it is opened again at once, with all signs: without them the workers would soon
    look dead.
    """

    def __init__(
        self,
        place: StoreAddress,
        clock: Clock,
        queries: Mapping[str, Query],
        heard: Callable[[str], None],
    ) -> None:
        self._place = place
        self._clock = clock
        self._queries = queries
        self._heard = heard
        self._signs: dict[int, str] = {}
        self._shown = asyncio.Event()
        self._opening = asyncio.Lock()
        self._link: PipelinedConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        self.is_possible = bool(place.direct)

    def want(self) -> None:
        """Open the connection soon, if there can be one, and keep it open."""
        if self.is_possible and not self._is_wanted:
            self._is_wanted = True
            self._task = asyncio.create_task(self._reopen(), name="outlast direct")

    async def show(self, worker: str) -> int | None:
        """Show a sign of life for a worker, and return its number, or None behind a pooler."""
        self._is_wanted = True
        link = await self._open()
        if link is None:
            return None
        try:
            [(sign,)] = await link.ask(self._queries["next_sign"].bind({}))
            await link.ask(self.lock("show_sign", sign))
        except psycopg.Error as error:
            raise explain(error, self._place.label) from error
        self._signs[sign] = worker
        return int(sign)

    async def hide(self, sign: int) -> None:
        """Remove a sign: other workers see that this one is gone."""
        if sign in self._signs:
            del self._signs[sign]
            if self._link and self._link.is_open:
                await self._link.ask(self.lock("hide_sign", sign))

    def until_shown(self) -> Awaitable[None] | None:
        """Return something to await before a write while signs of life are not shown, else None."""
        return self._wait() if self._signs and not self._shown.is_set() else None

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._shown.wait()
        except TimeoutError:
            raise StoreUnavailable(
                f"the {self._place.label} cannot be reached directly, so other workers cannot"
                " see that this one is alive; check the parameter direct of the store's URL",
                store=self._place.label,
            ) from None

    def lock(self, name: str, sign: int) -> Statement:
        return self._queries[name].bind({"class": self._place.number, "sign": sign})

    async def _open(self) -> PipelinedConnection | None:
        """Open the connection, show the signs again, and listen; return None at a pooler."""
        async with self._opening:
            if not self.is_possible:
                return None
            if self._link and self._link.is_open:
                return self._link
            link = await PipelinedConnection.open(self._place.direct, self._place.label)
            link.on_notice = self._heard
            try:
                if not self._signs and not await self._is_direct(link):
                    link.close()
                    return None
                signs = [self.lock("show_sign", sign) for sign in self._signs]
                await link.send([*signs, self._queries["listen"].bind({})])
            except BaseException as error:
                link.close()
                if isinstance(error, psycopg.Error):
                    raise explain(error, self._place.label) from error
                raise
            link.on_lost = self._lost
            self._link = link
            self._shown.set()
            return link

    async def _is_direct(self, link: PipelinedConnection) -> bool:
        """Whether the server itself answers: at a pooler our signs would outlive this process."""
        [(backend,)] = await link.ask(self._queries["find_backend"].bind({}))
        self.is_possible = backend == link.backend
        if not self.is_possible:
            log.warning(
                "a pooler answers for the database, so the death of a worker is seen only when its"
                " lease ends, and new work is found by polling; name the database itself, or none,"
                " in the parameter direct of the store's URL",
                extra={"store": self._place.label},
            )
        return self.is_possible

    def _lost(self) -> None:
        self._shown.clear()
        self._task = asyncio.create_task(self._reopen(), name="outlast direct")

    async def _reopen(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._open()
            except StoreError as error:
                missed = sorted(self._signs.values())
                log.warning("no direct connection", extra={"workers": missed, "code": error.code})
            else:
                self._heard("")  # hints that came meanwhile are lost: look everywhere
                return
            await asyncio.sleep(self._clock.jitter(pause))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def close(self) -> None:
        """Remove all signs: other workers see that this process is gone."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._link:
            self._link.on_lost = None
            self._link.close()


class LivenessObserver:
    """Remembers since when the signs of workers have been missing."""

    def __init__(self, place: StoreAddress, clock: Clock, queries: Mapping[str, Query]) -> None:
        self._clock = clock
        self._statement = queries["missing_workers"].bind(
            {"class": place.number, "long_gone": LONG_GONE}
        )
        self._looked_at = float("-inf")
        self._missing: dict[str, float] = {}
        self._dead: list[str] = []

    def is_due(self, after: float) -> bool:
        """Whether the last look was so many seconds ago, or found a sign missing."""
        return bool(self._missing) or self._clock.monotonic() - self._looked_at >= after

    def look(self) -> Statement:
        return self._statement

    def note(self, rows: Rows) -> None:
        """Note the workers without a sign; one that had none 300 ms ago either is dead."""
        now = self._clock.monotonic()
        before, self._looked_at = self._missing, now
        self._missing = {worker: before.get(worker, now) for worker, _ in rows}
        self._dead = [
            worker
            for worker, is_long_gone in rows
            if is_long_gone or round(now - self._missing[worker], 3) >= MISSING_FOR
        ]

    @property
    def pause(self) -> float:
        """Return how long to wait until a sign has been missing for long enough."""
        now = self._clock.monotonic()
        waits = [MISSING_FOR - (now - since) for since in self._missing.values()]
        return max(0.0, *waits) if waits and not self._dead else 0.0

    def take_dead(self) -> list[str]:
        dead, self._dead = self._dead, []
        return dead
