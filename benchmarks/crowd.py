"""A hundred thousand sessions that wait: one is made by the engine, the others after it.

What the engine wrote of the one is written again under other ids, through the store's own
`admit`, `claim` and `commit`, many sessions at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.place import Database
from benchmarks.work import asker
from outlast import Outlast
from outlast.clock import Clock
from outlast.core import codec
from outlast.core.index import index
from outlast.core.instant import date_of
from outlast.core.record import AnyRecord, DeliveryQueued, RequestOpened, SessionStarted
from outlast.store import (
    Admission,
    AdmissionReceipt,
    Claim,
    Commit,
    Committed,
    Lease,
    Store,
    WorkerInfo,
)

TOGETHER = 500
WORKER = "the crowd's"
LEASE = 3_600_000

_decode = msgspec.msgpack.Decoder(tuple[AnyRecord, ...]).decode


@dataclass(frozen=True)
class Sample:
    """What one waiting session's log holds, and the ids in it that nobody else may have."""

    arrivals: bytes
    records: bytes
    ids: tuple[str, ...]
    turn: str

    def named(self, records: bytes, ids: Sequence[str]) -> tuple[AnyRecord, ...]:
        """Return the records under other ids, which are as long."""
        for old, new in zip(self.ids, ids, strict=True):
            records = records.replace(old.encode(), new.encode())
        return _decode(records)


async def gather(database: Database, sessions: int) -> None:
    """Fill a database with sessions that wait for an approval."""
    sample = await make_sample(database)
    app = Outlast([asker()], store=database.url, worker=None)
    async with app:
        lease = await enlist(app, WORKER)
        for start in range(1, sessions, TOGETHER):
            await add(app.store, app.clock, sample, min(TOGETHER, sessions - start))
        await asyncio.to_thread(lease.release)


async def enlist(app: Outlast, name: str) -> Lease:
    """Be a worker of the fleet: to anybody else no lane is given."""
    info = WorkerInfo(worker=name, host="", pid=0, started_at=date_of(app.clock.now()), version="")
    return await app.store.work.enlist(info, LEASE)


async def make_sample(database: Database) -> Sample:
    async with Outlast([agent := asker()], store=database.url) as app:
        session = await app.start(agent, "Pay.")
        await session.wait()
        entries = (await app.store.log.read(session.id, 0)).entries
        [lane] = await app.workers.lanes(session_id=session.id)
    records = [entry.record for entry in entries]
    started, queued, *rest = records
    assert isinstance(started, SessionStarted)
    assert isinstance(queued, DeliveryQueued)
    [request] = [record for record in rest if isinstance(record, RequestOpened)]
    return Sample(
        codec.encode([started, queued]),
        codec.encode(rest),
        (queued.delivery_id, started.token, request.request_id),
        lane.turn,
    )


async def add(store: Store, clock: Clock, sample: Sample, sessions: int) -> None:
    """Start sessions and have them wait: a group of arrivals, a claim, a group of commits."""
    ids = [make_ids(clock, sample) for _ in range(sessions)]
    admissions = [admission(clock, sample, each) for each in ids]
    receipts = await store.log.admit(admissions)
    claims = {claim.session_id: claim for claim in await store.work.claim(WORKER, sessions)}
    commits = []
    for each, receipt in zip(ids, receipts, strict=True):
        assert isinstance(receipt, AdmissionReceipt), receipt
        commits.append(parting(clock, sample, each, claims[receipt.session_id]))
    written = await store.log.commit(commits)
    assert all(isinstance(one, Committed) for one in written), written


def make_ids(clock: Clock, sample: Sample) -> tuple[str, str, str]:
    _, token, request = sample.ids
    prefix, _, _ = request.partition("_")
    return clock.new_id("dlv"), clock.token()[: len(token)], clock.new_id(prefix)


def admission(clock: Clock, sample: Sample, ids: tuple[str, str, str]) -> Admission:
    delivery_id, token, _ = ids
    records = sample.named(sample.arrivals, ids)
    started = records[0]
    assert isinstance(started, SessionStarted)
    return Admission(
        tenant=started.tenant,
        session_id=clock.new_id("ses"),
        lane="main",
        delivery_id=delivery_id,
        kind="message",
        records=records,
        at=clock.now(),
        dispatch_id=delivery_id,
        scope="tenant",
        fingerprint="",
        new=True,
        agent=started.agent,
        mode=started.mode,
        token=token,
    )


def parting(clock: Clock, sample: Sample, ids: Sequence[str], claim: Claim) -> Commit:
    records = sample.named(sample.records, ids)
    return Commit(
        session_id=claim.session_id,
        lane=claim.lane,
        worker=WORKER,
        fence=claim.fence,
        number=claim.number,
        epoch=claim.epoch,
        seen=claim.last_arrival,
        at=clock.now(),
        records=records,
        body=codec.encode(records),
        index=index(records),
        status="waiting",
        turn=sample.turn,
        ready_at=None,
        release=True,
    )
