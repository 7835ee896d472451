"""Explains which worker owns a lane, or why none does.

Owns the checks that say of each living worker why it does not take up a lane that is ready: what it
serves, its deployment, how full it is. They repeat in words what the store's `claim` decides in
SQL, and must change with it. What an owner waits for is explained by `lane.py` and `turn.py`.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from math import inf

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.log.explain.evidence import ExplainEvidence
from outlast.log.explain.link import Cause
from outlast.log.explain.obstacle import naming
from outlast.store import ANYONE, LaneInfo, Pin, WorkerInfo


def who_carries(info: LaneInfo, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name the lane's owner, or say why a lane that could go on has none."""
    owner = next((w for w in evidence.workers if w.worker == info.worker), None)
    if owner:
        drains = ", and drains" if owner.draining else ""
        silent = "; the database does not hear of it, and its lease decides" if owner.silent else ""
        yield Cause(
            kind="owner",
            text=f"worker {owner.worker} on {owner.host} (pid {owner.pid})"
            f" carries it{drains}{silent}",
            until=owner.lease_until,
            worker=owner.worker,
            fence=info.fence,
        )
        yield from takeover_of(info, evidence)
        return
    if info.worker:
        heir = "another worker" if evidence.workers else "the next worker that starts"
        text = f"its owner {info.worker} is gone; {heir} will take it over"
        yield Cause(kind="owner", text=text, worker=info.worker, fence=info.fence)
    if info.claimable_at and info.claimable_at > evidence.now:
        yield Cause(
            kind="deaths",
            text=f"{info.deaths} workers died with it in a row, and nothing came of it:"
            " it is left alone for a while",
            until=info.claimable_at,
        )
    elif info.ready_at is not None and info.ready_at <= evidence.now:
        if info.deaths > 1:
            text = f"{info.deaths} workers died with it in a row, and nothing came of it"
            yield Cause(kind="deaths", text=text)
        yield Cause(
            kind="worker",
            text=f"it waits for a worker: {worker_missing(info, evidence)}",
            since=info.ready_at,
        )


HOW = {
    "lock_file": "the lock file of its process was free",
    "port_refused": "the database saw none of its connections, and its port refused",
    "lease_expired": "its lease had run out",
    "released": "it had left without handing the lane back",
    "handed_back": "it had handed the lane back",
}


def takeover_of(info: LaneInfo, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Say on which evidence the owner took over a turn that another had begun."""
    taken = evidence.find(info.lane, r.LaneTakenOver, worker=info.worker, fence=info.fence)
    if taken and isinstance(taken.record, r.LaneTakenOver) and taken.record.evidence in HOW:
        why = HOW[taken.record.evidence]
        yield Cause(
            kind="takeover",
            text=f"it took the lane over from another worker: {why}",
            since=date_of(taken.at),
            worker=info.worker,
            fence=info.fence,
        )


def worker_missing(info: LaneInfo, evidence: ExplainEvidence) -> str:
    """Say which worker could take up a lane that is ready."""
    if not evidence.workers:
        return "none is running on this store"
    fit = [worker for worker in evidence.workers if serves(worker, info)]
    if not fit:
        return f"none of the {len(evidence.workers)} there are serves it"
    if evidence.deployments:
        fit = [worker for worker in fit if is_allowed(worker, info, evidence)]
        if not fit:
            return deployment_missing(info, evidence)
    staying = [worker for worker in fit if not worker.draining]
    if not staying:
        return "all that serve it are draining"
    staying = [worker for worker in staying if not worker.silent]
    if not staying:
        return "the database hears of none that serves it"
    staying = [worker for worker in staying if not leaves_unfinished(worker, evidence)]
    if not staying:
        return (
            "all that serve it leave what was unfinished when they started (resume=False):"
            " send it something, or start a worker that resumes"
        )
    free = [worker for worker in staying if not 0 < worker.concurrency <= worker.held]
    if not free:
        return f"all {len(staying)} that serve it are full"
    at_work = evidence.at_work
    able = [worker for worker in free if len(at_work) < worker.at_once.get(info.agent, inf)]
    if not able:
        names = naming([f"{lane.session_id} {lane.lane}" for lane in at_work])
        return f"the agent {info.agent} has as many lanes at work as its limit allows, {names}"
    return f"{able[0].worker} or another will take it up at once"


def is_allowed(worker: WorkerInfo, info: LaneInfo, evidence: ExplainEvidence) -> bool:
    """Say whether a worker's deployment may carry a lane, as the store's `claim` decides it."""
    pin = evidence.pins.get(info.lane)
    if pin and pin.deployment in (worker.deployment, ANYONE):
        return True
    if worker.deployment != current_deployment(info.agent, evidence):
        return False
    return pin is None or not (pin.stays or is_served_by_pin(pin, info, evidence))


def is_served_by_pin(pin: Pin, info: LaneInfo, evidence: ExplainEvidence) -> bool:
    """Say whether a deployment has a worker that claims lanes of an agent."""
    ours = (worker for worker in evidence.workers if worker.deployment == pin.deployment)
    return any(info.agent in worker.agents and not worker.draining for worker in ours)


def current_deployment(agent: str, evidence: ExplainEvidence) -> str:
    return next((each.name for each in evidence.deployments if agent in each.current), "")


def deployment_missing(info: LaneInfo, evidence: ExplainEvidence) -> str:
    """Say of which deployment a worker is missing."""
    pin = evidence.pins.get(info.lane)
    if pin and pin.stays:
        return (
            f"it stays with the deployment {pin.deployment}, of which none is there: start one,"
            f" or move it: outlast deployments retire {pin.deployment} --to OTHER"
        )
    name = current_deployment(info.agent, evidence)
    return (
        f"those there are belong to other deployments than {name}, the current one: start one of"
        " it, or make another one current: outlast deployments promote OTHER"
    )


def leaves_unfinished(worker: WorkerInfo, evidence: ExplainEvidence) -> bool:
    """Say whether a worker takes only what something came to since it started, and nothing did."""
    since = worker.arrived_since
    return since is not None and evidence.session.updated_at < since


def serves(worker: WorkerInfo, info: LaneInfo) -> bool:
    fits = not worker.lanes or any(fnmatchcase(info.lane, pattern) for pattern in worker.lanes)
    return fits and info.agent in worker.agents
