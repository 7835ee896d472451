"""The topic `work`: workers, the lease that each of them holds, and the lanes that they own.

Knows nothing of what is in a log: a lane is ready, owned under a fence, or neither.
What an owner writes is the topic `log`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from outlast.core.record import FORMAT

NO_LIMITS: Mapping[str, int] = {}


class WorkerInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A worker as the registry knows it.

    It says of itself which `agents` it serves, on lanes whose name fits one of the patterns in
    `lanes` (none: on all), and how many at once; `at_once` are the agents of which only so many
    lanes may be at work in the whole fleet, and `counters` is what it has counted so far, as JSON
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
    counters: str = ""
    seen_at: int = 0
    lease_until: int = 0
    held: int = 0
    draining: bool = False


class Renewal(Struct, frozen=True, gc=False):
    """The answer to a renewal: is the worker still registered, and was it asked to drain?

    `lapsed` says that the lease had run out meanwhile: others may have claimed its lanes.
    """

    alive: bool
    draining: bool = False
    lapsed: bool = False


class Lease(Protocol):
    """A worker's lease, by which others know that it lives. Any thread may call its methods."""

    def renew(self, counters: str = "") -> Renewal:
        """Extend the lease by its full length, and return what happened to the worker meanwhile.

        A lease that ran out goes on if the worker is still registered: the worker keeps the lanes
        that no other has claimed, and the fence of the others has grown. A `counters` that is not
        empty replaces the counters that the worker reported before.
        """
        ...

    def release(self) -> None:
        """End the lease and remove every sign of life: the worker has stopped."""
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


class WorkStore(Protocol):
    """The workers of all processes, and the lanes that each of them owns."""

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        """Register a worker as alive for `lease` milliseconds, visibly for others if possible."""
        ...

    async def find_dead(self) -> Sequence[str]:
        """Look for workers that are visibly dead, free their lanes at once, and return them.

        A worker is dead when its sign of life is missing twice, 300 ms apart, seen by this
        store. A worker whose sign cannot be seen from here lives until its lease runs out.
        """
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers whose lease has not run out, oldest first.

        A worker that should show a sign of life and shows none now is left out: it was killed, or
        cannot be reached. Its lanes stay its own until `find_dead` finds it.
        """
        ...

    async def drain(self, worker: str) -> bool:
        """Ask a living worker to hand back its lanes and leave; return whether there is one.

        The worker learns of it when it next renews its lease, or by a hint before that.
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
        run out gets nothing: others would claim the same lanes from it again.
        """
        ...

    async def find_arrivals(
        self, heads: Sequence[tuple[str, str, int]]
    ) -> Sequence[tuple[str, str]]:
        """Return the lanes, by session and name, that have an arrival after the given offset.

        Owners ask this because a hint may be lost. A lane that does not exist has no arrivals.
        """
        ...

    async def next_ready_at(self, after: int) -> int | None:
        """Return the first instant after the given one at which an unowned lane gets ready."""
        ...

    def listen(
        self, heard: Callable[[str, bool], None], session_id: str = ""
    ) -> Callable[[], None]:
        """Call `heard(session_id, arrived)` on this event loop soon after anything is written.

        With a `session_id` only writes to that session are reported. `arrived` says whether
        something came into an inbox or a lane was given back. A hint, not a promise: it may come
        late, twice, for nothing (with an empty id) or not at all. Returns a function that ends it.
        """
        ...
