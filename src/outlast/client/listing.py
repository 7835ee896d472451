"""Pages of what there is on a server: sessions, open requests, lanes, workers.

Owns the shape of each page over the wire, and its cursor. Which route gives a page is known to
`client.py` and `fleet.py`.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self, TypeVar

from msgspec import Struct

from outlast.agents.runtime.json_value import to_json
from outlast.client.decode import WireRequest
from outlast.client.info import RemoteFailure, WireSession
from outlast.core.breaker import BreakerState
from outlast.core.lane import Status
from outlast.core.queue import QueueSettings
from outlast.core.record import Failure
from outlast.session.provider import ProviderOutage
from outlast.session.queue import QueueInfo
from outlast.store import DeploymentInfo, LaneInfo, TakeoverEvidence, WorkerInfo

T = TypeVar("T")


class ListPage(tuple[T, ...]):
    """Some of what there is. `cursor` is where the next page begins, or None at the end."""

    cursor: str | None

    def __new__(cls, items: Iterable[T], cursor: str | None) -> Self:
        page = super().__new__(cls, items)
        page.cursor = cursor
        return page


class WireSessions(Struct):
    sessions: tuple[WireSession, ...]
    next_cursor: str | None = None


class WireRequests(Struct):
    requests: tuple[WireRequest, ...]
    next_cursor: str | None = None


class WireLane(Struct):
    """A lane. Its owner is shown only with the scope `internals`."""

    session_id: str
    agent: str
    lane: str
    status: Status
    turn: str | None = None
    queued: int = 0
    ready_at: datetime | None = None
    worker: str | None = None
    fence: int | None = None
    failure: RemoteFailure | None = None

    def value(self) -> LaneInfo:
        return LaneInfo(
            session_id=self.session_id,
            agent=self.agent,
            lane=self.lane,
            status=self.status,
            turn=self.turn or "",
            worker=self.worker or "",
            fence=self.fence or 0,
            ready_at=self.ready_at,
            queued=self.queued,
            failure=self.failure.value() if self.failure else None,
        )


class WireLanes(Struct):
    lanes: tuple[WireLane, ...]
    next_cursor: str | None = None


class WireWorker(Struct):
    worker: str
    host: str
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime | None = None
    lease_until: datetime | None = None
    agents: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    concurrency: int = 0
    held: int = 0
    draining: bool = False
    silent: bool = False
    evidence: tuple[TakeoverEvidence, ...] = ()
    liveness_address: str = ""
    counters: dict[str, Any] = {}
    deployment: str = ""

    def value(self) -> WorkerInfo:
        return WorkerInfo(
            worker=self.worker,
            host=self.host,
            pid=self.pid,
            version=self.version,
            started_at=self.started_at,
            seen_at=self.seen_at,
            lease_until=self.lease_until,
            agents=self.agents,
            lanes=self.lanes,
            concurrency=self.concurrency,
            held=self.held,
            draining=self.draining,
            silent=self.silent,
            evidence=self.evidence,
            liveness_address=self.liveness_address,
            counters=to_json(self.counters),
            deployment=self.deployment,
        )


class WireDeployment(Struct):
    name: str
    agents: tuple[str, ...]
    current: tuple[str, ...]
    began_at: datetime
    workers: int
    turns: int
    runs: int
    sessions: int
    oldest_at: datetime | None = None

    def value(self) -> DeploymentInfo:
        return DeploymentInfo(
            name=self.name,
            agents=self.agents,
            current=self.current,
            began_at=self.began_at,
            workers=self.workers,
            turns=self.turns,
            runs=self.runs,
            sessions=self.sessions,
            oldest_at=self.oldest_at,
        )


class WireDeployments(Struct):
    deployments: tuple[WireDeployment, ...]


class WireRetired(Struct):
    moved: int


class WireWorkers(Struct):
    workers: tuple[WireWorker, ...]


class WireFailure(Struct):
    code: str
    message: str


class WireProvider(Struct):
    agent: str
    model: str
    state: BreakerState
    since: datetime
    error: WireFailure
    failures: int
    blocked: bool
    next_try_at: datetime
    waiting: int
    address: str = ""
    deployment: str = ""

    def value(self) -> ProviderOutage:
        return ProviderOutage(
            agent=self.agent,
            model=self.model,
            address=self.address,
            state=self.state,
            since=self.since,
            error=Failure(self.error.code, self.error.message),
            failures=self.failures,
            blocked=self.blocked,
            next_try_at=self.next_try_at,
            waiting=self.waiting,
            deployment=self.deployment,
        )


class WireProviders(Struct):
    providers: tuple[WireProvider, ...]


class WireQueue(Struct):
    name: str
    settings: QueueSettings
    running: int
    waiting: int
    oldest_at: datetime | None = None

    def value(self) -> QueueInfo:
        return QueueInfo(
            name=self.name,
            settings=self.settings,
            running=self.running,
            waiting=self.waiting,
            oldest_at=self.oldest_at,
        )


class WireQueues(Struct):
    queues: tuple[WireQueue, ...]


class WireTried(Struct):
    tried: int
