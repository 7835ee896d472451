"""The topic `work`: workers, the lease that each of them holds, and the lanes that they own.

Knows nothing of what is in a log: a lane is ready, owned under a fence, or neither.
An owner writes through the topic `log`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

from msgspec import Struct

from outlast.core.record import FORMAT


class Pin(Struct, frozen=True, gc=False):
    """The deployment whose workers carry a lane. Where none of them claims, the current one's do.

    With `stays` the lane waits for them. A lane pinned to `ANYONE` is every deployment's.
    """

    deployment: str
    stays: bool = False


ANYONE = "*"
NO_PIN = Pin("")

NO_LIMITS: Mapping[str, int] = {}
NO_DIGESTS: Mapping[str, str] = {}

FIRST_PAUSE, LONGEST_PAUSE = 1_000, 300_000
"""How many milliseconds a lane is left alone after its second owner died, and at most. The pause
doubles with each death; after the first there is none, as any worker may be killed once."""
PAUSES: Mapping[str, int] = {"first_pause": FIRST_PAUSE, "longest_pause": LONGEST_PAUSE}
"""The same, as the statements that free lanes are given them."""

TakeoverEvidence = Literal["lock_file", "port_refused", "lease_expired", "released", "handed_back"]
"""How it is known that a lane's owner could be passed over.

`lock_file`: the lock that its process held on a file of this machine is free, so the process is
gone. `port_refused`: the database sees none of its connections, and its port refuses an observer
that it answered within the last minute. `lease_expired`: it was not heard of for a whole lease.
`released`: it left without handing the lane back. `handed_back`: it gave the lane back.
"""


class WorkerInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A worker as the registry knows it.

    It says of itself which `agents` it serves, on lanes whose name fits one of the patterns in
    `lanes` (none: on all), and how many at once; `at_once` are the agents of which only so many
    lanes may be at work in the whole fleet, and `counters` is what it has counted so far, as JSON
    text. The store adds when it last heard of it, until when it is taken for alive, how many
    lanes it owns now and whether it was asked to drain.

    `liveness_address` is where it answers observers on other hosts, if it does: the worker says
    where it would listen, and the store where it is reached. `evidence` lists what can prove its
    death before its lease ends; `silent` says that the database sees none of its connections now.
    With `arrived_since` it is given only lanes for which something has arrived since then.
    `deployment` names the version of the code that it runs, if that has a name, and `digests` are
    those of what the models and the callers of its agents see, by what they are of.
    """

    worker: str
    host: str
    pid: int
    started_at: datetime
    version: str = ""
    concurrency: int = 0
    agents: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    at_once: Mapping[str, int] = NO_LIMITS
    counters: str = ""
    seen_at: datetime | None = None
    lease_until: datetime | None = None
    held: int = 0
    draining: bool = False
    liveness_address: str = ""
    evidence: tuple[TakeoverEvidence, ...] = ()
    silent: bool = False
    arrived_since: datetime | None = None
    deployment: str = ""
    digests: Mapping[str, str] = NO_DIGESTS


class DeploymentInfo(Struct, frozen=True, gc=False, kw_only=True):
    """A named version of the users' code, as its workers have told of it.

    It serves `agents`, and is `current` for those of which no other was made current later: its
    workers take up what is pinned to none. `workers` counts those that are alive and do not drain.
    Pinned to it are `turns`, `runs` of workflows among them, the first since `oldest_at`, and
    `sessions` that stay with it. `digests` are those that its workers told last.
    """

    name: str
    agents: tuple[str, ...]
    current: tuple[str, ...]
    began_at: datetime
    workers: int = 0
    turns: int = 0
    runs: int = 0
    sessions: int = 0
    oldest_at: datetime | None = None
    digests: Mapping[str, str] = NO_DIGESTS

    @property
    def can_be_retired(self) -> bool:
        """Whether nothing is lost when its last worker goes."""
        return not (self.current or self.turns or self.sessions)


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

    `deaths` counts the owners that were lost one after the other since a commit last set it, and
    `size` is how many bytes the session has. `permits` are its calls that hold permits or wait for
    some. `epoch` names a span of the database's life in which
    its history has only grown: a restart, a recovery, a restored backup and the promotion of a
    standby each begin another one.
    `evidence` says how its owner before lost it, a `TakeoverEvidence`, or nothing. `pin` is the
    deployment that it is pinned to, if it is to one.
    """

    session_id: str
    tenant: str
    lane: str
    agent: str
    fence: int
    number: int
    last_arrival: int
    deaths: int = 0
    size: int = 0
    permits: tuple[str, ...] = ()
    epoch: str = ""
    evidence: str = ""
    pin: Pin = NO_PIN


class Unfinished(Struct, frozen=True, gc=False):
    """Sessions with a lane that is ready and that no living worker carries, by agent.

    `oldest_at` is since when the first of their lanes is ready, `now` the store's time. It counts
    so many lanes at most, of which `is_whole` says whether they were all. `unserved` counts the
    ready lanes of agents that neither the asking worker nor a living one serves, by agent.
    """

    sessions: Mapping[str, int]
    oldest_at: int | None
    now: int
    is_whole: bool = True
    unserved: Mapping[str, int] = NO_LIMITS


MOST_COUNTED = 1000
"""How many lanes are looked at to say how much there is to do."""


class WorkStore(Protocol):
    """The workers of all processes, and the lanes that each of them owns."""

    async def enlist(self, worker: WorkerInfo, lease: int) -> Lease:
        """Register a worker as alive for `lease` milliseconds, visibly for others if possible.

        A deployment that is named for the first time is from then on the current one of the agents
        that it serves. What waits for code, and is pinned to `ANYONE`, is pinned to the current one
        when a worker of that enlists, and ready at once.
        """
        ...

    async def deployments(self) -> Sequence[DeploymentInfo]:
        """Return the deployments that workers have named, the one made current last first."""
        ...

    async def promote(self, deployment: str) -> bool:
        """Make a deployment the current one of its agents; return whether it is known.

        What waits for code is its workers' to look at then, as for `enlist`.
        """
        ...

    async def retire(self, deployment: str, to: str) -> int | None:
        """Pin to another deployment all that is pinned to one, which is current no longer.

        Where it was current, the other one is. Until it is promoted again, what its workers would
        pin to it is pinned to the other one, too, if that serves the agent. Returns how many lanes
        were moved; None if one of them is not known, and then nothing has changed.
        """
        ...

    async def find_dead(self) -> Mapping[str, TakeoverEvidence]:
        """Look for workers that are provably dead, and free their lanes at once.

        Returns those that this call struck from the registry, each with the evidence. That a worker
        cannot be seen or reached is no evidence: it lives until its lease runs out.
        A freed lane counts one death more. From its second one on it is not given out before a
        pause is over, whatever arrives, so that a lane that kills its workers does not kill all.
        """
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers whose lease has not run out, oldest first.

        A worker that is seen to be dead from here is left out; its lanes stay its own until
        `find_dead` finds it. One that only cannot be seen is listed as `silent`.
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
        given; then those ready for longest. A lane whose owner's lease ran out counts one death
        more. No record is written. A lane that is pinned to a deployment is given to its workers
        and, if it does not stay there, to those of the agent's current deployment while no worker
        of its own serves the agent and lives and does not drain. A lane that is pinned to none is
        given to those of the current one; without any deployment, to all. A worker whose own lease
        has run out gets nothing: others would claim the same lanes from it again. One that enlisted
        with `arrived_since` is given none for which nothing has arrived since then; other workers
        are.
        """
        ...

    async def find_unfinished(
        self, agents: Sequence[str], lanes: Sequence[str] | None, living: Sequence[str]
    ) -> Unfinished:
        """Say what is ready for a worker of these `agents` and `lanes`, as it is for `claim`.

        `living` are the workers whose lanes do not count. It costs the same however many sessions
        are parked.
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
        """Return the first instant after the given one at which an unowned lane can be claimed."""
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
