"""Admissions and commits for tests, with everything filled in that a test does not care about."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.budget_fold import changes_of
from outlast.core.codec import encode
from outlast.core.index import index
from outlast.core.instant import date_of
from outlast.core.message import Text
from outlast.core.record import AnyRecord, Entry
from outlast.core.usage import usage_of
from outlast.errors import OutlastError
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    EffectClaim,
    Lease,
    Refused,
    Store,
    WorkerInfo,
)

LEASE = 30_000
TENANT = "default"
AGENT = "support"


def message(clock: Clock, session_id: str, text: str = "hello", **changes: Any) -> Admission:
    """Something said to a session that exists."""
    delivery_id = clock.new_id("dlv")
    dispatch_id = clock.new_id("dsp")
    record = r.DeliveryQueued(delivery_id=delivery_id, content=(Text(text),))
    admission = Admission(
        tenant=TENANT,
        session_id=session_id,
        lane="main",
        delivery_id=delivery_id,
        kind="message",
        records=(record,),
        at=clock.now(),
        dispatch_id=dispatch_id,
        scope=session_id,
        fingerprint=text,
    )
    return replace(admission, **changes)


def new_session(clock: Clock, text: str = "hello", queue: str = "", **changes: Any) -> Admission:
    """A session's start, together with the first thing said to it; it may stand in a queue."""
    first = message(clock, clock.new_id("ses"), text, new=True, agent=AGENT, scope="")
    first = replace(first, **{"mode": "conversation", **changes})
    started = r.SessionStarted(
        agent=first.agent,
        mode=first.mode,
        tenant=first.tenant,
        token=first.token,
        place=r.QueuePlace(queue=queue) if queue else None,
    )
    return replace(first, records=(started, *first.records))


def reply(clock: Clock, session_id: str, request_id: str, option: str = "approve") -> Admission:
    """An answer to a request."""
    blank = message(clock, session_id, option)
    record = r.DeliveryQueued(
        delivery_id=blank.delivery_id, kind="reply", request_id=request_id, option=option
    )
    return replace(blank, kind="reply", records=(record,), scope=request_id, request_id=request_id)


def cancel(clock: Clock, session_id: str, *, turn: str = "", lane: str = "main") -> Admission:
    """A wish to stop a turn: the named one, or what is open."""
    blank = message(clock, session_id, "cancel", lane=lane)
    record = r.CancelRequested(delivery_id=blank.delivery_id, turn=turn)
    return replace(blank, kind="cancel", records=(record,))


def state_change(clock: Clock, session_id: str, **given: Any) -> Admission:
    """A wish to empty a slice."""
    blank = message(clock, session_id, "state", **given)
    record = r.StateChangeRequested(delivery_id=blank.delivery_id, op="seed", slice="notes")
    return replace(blank, kind="state", records=(record,))


def commit(claim: Claim, *records: AnyRecord, worker: str = "w1", **changes: Any) -> Commit:
    """Return the next commit of a lane's owner, which has seen all that was there at its claim."""
    wanted = Commit(
        session_id=claim.session_id,
        lane=claim.lane,
        worker=worker,
        fence=claim.fence,
        number=claim.number,
        seen=claim.last_arrival,
        epoch=claim.epoch,
        at=0,
        records=records,
        body=encode(records),
        index=index(records),
        used=usage_of(records),
        budgets=changes_of(records),
    )
    return replace(wanted, **changes)


def park(claim: Claim, *records: AnyRecord, **changes: Any) -> Commit:
    """A commit that gives the lane back until something arrives."""
    return commit(
        claim, *records, **{"status": "idle", "release": True, "ready_at": None, **changes}
    )


def delta(text: str = "word") -> r.MessageDelta:
    """Some record that changes no index."""
    return r.MessageDelta(call_id="t1.s1", attempt=1, part=0, text=text)


def turn_started(delivery_id: str, turn: str = "t1") -> r.TurnStarted:
    return r.TurnStarted(turn=turn, delivery_id=delivery_id, since=0)


def settled(delivery_id: str, turn: str = "t1") -> r.DeliverySettled:
    return r.DeliverySettled(delivery_id=delivery_id, outcome="completed", turn=turn)


def question(request_id: str, *, expires_at: int = 0) -> r.RequestOpened:
    return r.RequestOpened(
        request_id=request_id,
        kind="approval",
        prompt="May it?",
        call_id="t1.s1.c1",
        expires_at=expires_at,
    )


def put(value: str) -> r.StateChanged:
    return r.StateChanged(slice="notes", op="put", values=(value,))


def effect(
    claim: Claim, call_id: str = "t1.s1.c1", state: str = "held", value: str = ""
) -> EffectClaim:
    return EffectClaim("tool:pay", "order-17", claim.session_id, call_id, state, value)


async def enlist(store: Store, clock: Clock, worker: str = "w1", lease: int = LEASE) -> Lease:
    """Register a worker as alive."""
    info = WorkerInfo(
        worker=worker, host="here", pid=1, started_at=date_of(clock.now()), version="1"
    )
    return await store.work.enlist(info, lease)


async def admit(store: Store, admission: Admission) -> AdmissionReceipt:
    """Admit one thing that has to be accepted."""
    (result,) = await store.log.admit([admission])
    assert isinstance(result, AdmissionReceipt), result
    return result


async def admit_in_vain(store: Store, admission: Admission) -> OutlastError:
    """Admit one thing that has to be refused."""
    (result,) = await store.log.admit([admission])
    assert isinstance(result, OutlastError), result
    return result


async def write(store: Store, wanted: Commit) -> Committed:
    """Commit one thing that has to be written."""
    (result,) = await store.log.commit([wanted])
    assert isinstance(result, Committed), result
    return result


async def write_in_vain(store: Store, wanted: Commit) -> Refused:
    """Commit one thing that has to be refused."""
    (result,) = await store.log.commit([wanted])
    assert isinstance(result, Refused), result
    return result


async def claim_one(store: Store, worker: str = "w1") -> Claim:
    """Claim the only lane that is to be had."""
    (claim,) = await store.work.claim(worker, 10)
    return claim


async def start_and_claim(
    store: Store, clock: Clock, *, held: Sequence[Claim] = (), **changes: Any
) -> Claim:
    """Start a session, and make the worker w1 the owner of its lane beside those it holds."""
    if "w1" not in [info.worker for info in await store.work.workers()]:
        await enlist(store, clock)
    receipt = await admit(store, new_session(clock, **changes))
    claims = await store.work.claim("w1", 100, held=places(held))
    (claim,) = [claim for claim in claims if claim.session_id == receipt.session_id]
    return claim


def places(claims: Sequence[Claim]) -> list[tuple[str, str]]:
    return [(claim.session_id, claim.lane) for claim in claims]


async def ask(store: Store, claim: Claim, *requests: r.RequestOpened) -> Claim:
    """Open requests and park; return the claim as it stands after that."""
    await write(store, park(claim, *requests, status="waiting"))
    return replace(claim, number=claim.number + 1)


async def read_all(store: Store, session_id: str) -> Sequence[Entry]:
    entries: list[Entry] = []
    while True:
        page = await store.log.read(session_id, len(entries), 100_000)
        entries += page.entries
        if page.cursor >= page.end:
            return entries


async def end_of(store: Store, session_id: str) -> int:
    return (await store.log.read(session_id, 0)).end
