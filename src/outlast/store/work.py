"""Who works on what: workers, the lease that each lives by, and the lanes that they own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from outlast.core.record import FORMAT

NO_LIMITS: Mapping[str, int] = {}


class WorkerInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A worker as the registry knows it.

    It says of itself which `agents` it serves, on lanes whose name fits one of the patterns in
    `lanes` (none: on all), and how many at once; `at_once` are the agents of which only so many
    lanes may be at work in the whole fleet, and `tally` is what it has counted so far, as JSON
    text. The store adds when it last heard of it, until when it is taken for alive, how many
    lanes it owns now and whether it was asked to drain.
    """

    worker: str
    host: str
    pid: int
    started_at: int
    version: str = ""
    concurrency: int = 0
    agents: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    at_once: Mapping[str, int] = NO_LIMITS
    tally: str = ""
    seen_at: int = 0
    lease_until: int = 0
    held: int = 0
    draining: bool = False


class Renewal(Struct, frozen=True, gc=False):
    """Whether nobody has declared the worker dead, and whether somebody asked it to drain.

    `lapsed` says that the lease had run out meanwhile: others may have claimed its lanes.
    """

    alive: bool
    draining: bool = False
    lapsed: bool = False


class Lease(Protocol):
    """A worker's hold on life. Methods may be called from any thread."""

    def renew(self, tally: str = "") -> Renewal:
        """Extend the lease by its full length, and say what became of the worker meanwhile.

        One that ran out and is still known goes on: what others have not claimed is its own as
        before, and of what they have the fence is another. A `tally` that is not empty takes
        the place of what the worker had counted before.
        """
        ...

    def release(self) -> None:
        """Give up the lease and all signs of life: the worker has stopped."""
        ...


class Claim(Struct, frozen=True, gc=False):
    """A lane that the worker owns from now on, under this fence.

    `permits` are its calls that hold permits or wait for some, and `now` is the store's own time.
    """

    session_id: str
    tenant: str
    lane: str
    agent: str
    fence: int
    number: int
    last_arrival: int
    permits: tuple[str, ...] = ()
    now: int = 0


class WorkerRegistry(Protocol):
    """The registry of workers, and what each of them owns."""

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        """Register a worker as alive for `lease` milliseconds, and say so visibly if possible."""
        ...

    async def find_dead(self) -> Sequence[str]:
        """Look for workers that are visibly dead, and free their lanes at once.

        A worker is dead when its sign of life is missing twice, 300 ms apart, seen by this
        store; whose sign cannot be seen is left to its lease.
        """
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers whose lease has not run out, oldest first.

        One that should show a sign of life and shows none now is left out: it was killed, or
        cannot be reached. Nothing follows from that; who is dead is what `find_dead` says.
        """
        ...

    async def drain(self, worker: str) -> bool:
        """Ask a living worker to hand back its lanes and leave; say whether there is one.

        It is told when it next renews its lease, and hinted at before if possible.
        """
        ...

    async def claim(
        self,
        worker: str,
        limit: int,
        held: Sequence[tuple[str, str]] = (),
        agents: Sequence[str] | None = None,
        version: int = FORMAT,
        lanes: Sequence[str] | None = None,
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Sequence[Claim]:
        """Give up to `limit` lanes to the worker: ready, and with no living owner.

        Each claim raises the lane's fence. Lanes that the worker owns already and does not
        name in `held` are handed out again, under a new fence. Lanes of other agents than
        `agents`, whose name fits none of the patterns in `lanes` (`*` is any text), or with
        records of a newer format than `version`, are left alone. Of an agent in `most` no
        more lanes than that are owned by living workers afterwards, unless they were before.
        A tenant with fewer lanes at work comes before one with more, counting those that are
        given; then those ready for longest. No record is written. A worker whose own lease has
        run out gets nothing: it would take from others what they would take back.
        """
        ...

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        """Return which lanes, by session and name, something arrived for after an offset of each.

        For who owns them and may not have been told: a lane that is not there has nothing.
        """
        ...

    async def next_ready_at(self, after: int) -> int | None:
        """Return the first instant after the given one at which an unowned lane gets ready."""
        ...
