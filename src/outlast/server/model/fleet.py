"""Lanes and workers over the wire, and how the server itself is."""

from typing import Any, Literal

from pydantic import Field

from outlast.core.breaker import BreakerState
from outlast.core.lane import Status
from outlast.server.model.session import FailureOut, LaneFailureOut
from outlast.server.model.shape import INSTANT, SESSION, Id, In, Instant, Out, example

A_LANE = {
    "session_id": SESSION,
    "agent": "support",
    "lane": "main",
    "status": "idle",
    "turn": None,
    "queued": 0,
    "failure": None,
    "wait": ["message"],
    "ready_at": None,
    "worker": None,
    "fence": None,
}
A_WORKER = {
    "worker": "wrk_01K5ZJ3M8Q4V6X2T9R7B1C0D5F",
    "host": "node-3",
    "pid": 4711,
    "version": "0.1.0",
    "started_at": INSTANT,
    "seen_at": INSTANT,
    "lease_until": INSTANT,
    "agents": ["support"],
    "lanes": [],
    "concurrency": 200,
    "held": 3,
    "draining": False,
    "silent": False,
    "evidence": ["lock_file", "port_refused"],
    "liveness_address": "10.0.0.5:7070",
    "counters": {"commits": 1832},
    "deployment": "2026-11-17.3",
}


A_PROVIDER = {
    "agent": "support",
    "model": "openai:gpt-5.2",
    "address": "api.openai.com",
    "state": "open",
    "since": INSTANT,
    "error": {
        "code": "MODEL_UNAVAILABLE",
        "message": "the provider answered 503: overloaded",
        "hint": "nothing has to be done: openai:gpt-5.2 is asked again by itself",
    },
    "failures": 7,
    "blocked": False,
    "next_try_at": INSTANT,
    "waiting": 48,
    "deployment": "2026-11-17.3",
}


A_DEPLOYMENT = {
    "name": "2026-11-17.3",
    "agents": ["support"],
    "current": ["support"],
    "began_at": INSTANT,
    "workers": 4,
    "turns": 201,
    "runs": 0,
    "sessions": 0,
    "oldest_at": INSTANT,
    "can_be_retired": False,
}


class LaneOut(Out):
    """A lane and its owner."""

    model_config = example(A_LANE)

    session_id: str
    agent: str
    lane: str
    status: Status
    turn: str | None
    queued: int
    failure: LaneFailureOut | None = Field(description="Why its last turn failed, if it did.")
    wait: list[str] = Field(description="What it rests for: message, provider, request, …")
    ready_at: Instant | None = Field(description="When it wants to be taken up.")
    worker: str | None = Field(description="Who owns it; only with the scope internals.")
    fence: int | None = Field(
        description="How often it was claimed; only with the scope internals."
    )


class LanePage(Out):
    """Lanes, those of the newest session first."""

    model_config = example({"lanes": [A_LANE], "next_cursor": None})

    lanes: list[LaneOut]
    next_cursor: str | None = Field(description="Where the next page begins, if there is one.")


class WorkerOut(Out):
    """A living worker."""

    model_config = example(A_WORKER)

    worker: str
    host: str
    pid: int
    version: str
    started_at: Instant
    seen_at: Instant | None
    lease_until: Instant | None
    agents: list[str]
    lanes: list[str]
    concurrency: int
    held: int = Field(description="How many lanes it carries now.")
    draining: bool
    silent: bool = Field(description="Whether the database sees none of its connections.")
    evidence: list[str] = Field(
        description="What proves its death before its lease ends: lock_file, port_refused."
    )
    liveness_address: str = Field(description="Where it answers observers; empty if it does not.")
    counters: dict[str, Any] = Field(description="What it has counted since it began.")
    deployment: str = Field(description="The version of its code; empty if that has no name.")


class WorkersOut(Out):
    """The living workers, oldest first."""

    model_config = example({"workers": [A_WORKER]})

    workers: list[WorkerOut]


class ProviderOut(Out):
    """A model that does not answer an agent."""

    model_config = example(A_PROVIDER)

    agent: str
    model: str
    address: str = Field(description="The host of the provider; empty if it is not known.")
    state: BreakerState = Field(
        description="failing: some calls wait for it. open: all calls do, and the first in line"
        " asks from time to time. recovering: it answers again, and those in line go on."
    )
    since: Instant
    error: FailureOut
    failures: int = Field(description="How many calls have failed in a row.")
    blocked: bool = Field(description="Whether it has to be mended: time alone will not do it.")
    next_try_at: Instant
    waiting: int = Field(description="How many lanes stand in line.")
    deployment: str = Field(description="The one whose workers ask it; empty if that has no name.")


class ProvidersOut(Out):
    """The providers that do not answer, those that are away for longest first."""

    model_config = example({"providers": [A_PROVIDER]})

    providers: list[ProviderOut]


class TryProvidersIn(In):
    """Which providers to ask now."""

    model_config = example({"agent": "support"})

    agent: Id | None = Field(None, description="Only that of this agent.")


class TriedOut(Out):
    """How many providers are asked now."""

    model_config = example({"tried": 1})

    tried: int


class DeploymentOut(Out):
    """A named version of the code that workers run."""

    model_config = example(A_DEPLOYMENT)

    name: str
    agents: list[str] = Field(description="Those that its workers serve.")
    current: list[str] = Field(description="Those of which it takes up what is pinned to none.")
    began_at: Instant
    workers: int = Field(description="How many are alive and do not drain.")
    turns: int = Field(description="How many open turns are pinned to it.")
    runs: int = Field(description="How many of these are runs of workflows.")
    sessions: int = Field(description="How many lanes stay with it for good.")
    oldest_at: Instant | None = Field(description="Since when the first of its turns is pinned.")
    can_be_retired: bool = Field(description="Whether nothing is left on it.")


class DeploymentsOut(Out):
    """The deployments that workers have named, the current one first."""

    model_config = example({"deployments": [A_DEPLOYMENT]})

    deployments: list[DeploymentOut]


class RetireIn(In):
    """Where to move what is pinned to a deployment."""

    model_config = example({"to": "2026-11-17.4"})

    to: Id = Field(description="Another deployment.")


class RetiredOut(Out):
    """How many lanes were moved."""

    model_config = example({"moved": 14})

    moved: int


class Health(Out):
    """The process is there."""

    model_config = example({"status": "ok"})

    status: Literal["ok"] = "ok"
