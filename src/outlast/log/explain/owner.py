"""Explains which worker owns a lane, or why none does."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from math import inf

from outlast.log.explain.evidence import ExplainEvidence
from outlast.log.explain.link import Cause
from outlast.log.explain.obstacle import naming
from outlast.store import LaneInfo, WorkerInfo


def who_carries(info: LaneInfo, evidence: ExplainEvidence) -> Iterator[Cause]:
    """Name the lane's owner, or say why a lane that could go on has none."""
    owner = next((w for w in evidence.workers if w.worker == info.worker), None)
    if owner:
        drains = ", and drains" if owner.draining else ""
        yield Cause(
            kind="owner",
            text=f"worker {owner.worker} on {owner.host} (pid {owner.pid}) carries it{drains}",
            until=owner.lease_until,
            worker=owner.worker,
            fence=info.fence,
        )
        return
    if info.worker:
        heir = "another worker" if evidence.workers else "the next worker that starts"
        text = f"its owner {info.worker} is gone; {heir} will take it over"
        yield Cause(kind="owner", text=text, worker=info.worker, fence=info.fence)
    if info.ready_at is not None and info.ready_at <= evidence.now:
        yield Cause(
            kind="worker",
            text=f"it waits for a worker: {which(info, evidence)}",
            since=info.ready_at,
        )


def which(info: LaneInfo, evidence: ExplainEvidence) -> str:
    """Say which worker could take up a lane that is ready."""
    if not evidence.workers:
        return "none is running on this store"
    fit = [worker for worker in evidence.workers if serves(worker, info)]
    if not fit:
        return f"none of the {len(evidence.workers)} there are serves it"
    staying = [worker for worker in fit if not worker.draining]
    if not staying:
        return "all that serve it are draining"
    free = [worker for worker in staying if not 0 < worker.concurrency <= worker.held]
    if not free:
        return f"all {len(staying)} that serve it are full"
    at_work = evidence.at_work
    able = [worker for worker in free if len(at_work) < worker.at_once.get(info.agent, inf)]
    if not able:
        names = naming([f"{lane.session_id} {lane.lane}" for lane in at_work])
        return f"the agent {info.agent} has as many lanes at work as its limit allows, {names}"
    return f"{able[0].worker} or another will take it up at once"


def serves(worker: WorkerInfo, info: LaneInfo) -> bool:
    fits = not worker.lanes or any(fnmatchcase(info.lane, pattern) for pattern in worker.lanes)
    return fits and info.agent in worker.agents
