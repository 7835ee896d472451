"""Who lives and who is dead, on a PostgreSQL that is killed, restarted and asked little."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import psycopg
import pytest
from msgspec.structs import replace
from postgres_proxy import Wire, through
from postgres_server import Server
from rival import ask, opened

from outlast import WorkerSettings
from outlast.clock import Clock
from outlast.core.instant import date_of
from outlast.engine.maintenance import DeadWorkerDetector
from outlast.engine.service import ServiceLoop
from outlast.engine.worker import Worker
from outlast.errors import StoreUnavailable, UsedAfterFork
from outlast.store import Claim, Committed, TakeoverEvidence, WorkerInfo
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.liveness import MISSING_FOR
from outlast.stores.postgres.statement import Statement
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    start_and_claim,
    write,
)

clock = Clock()
TIMEOUT = 60.0

MORTAL = """
import asyncio, sys
from outlast.stores.postgres import PostgresStore
from outlast.core.instant import date_of
from outlast.store import WorkerInfo

async def main():
    store = PostgresStore(sys.argv[1])
    await store.migrate()
    worker = WorkerInfo(
        worker=sys.argv[2], host="here", pid=1, started_at=date_of(0),
        liveness_address=sys.argv[3],
    )
    await store.work.enlist(worker, 600_000)
    claims = await store.work.claim(sys.argv[2], 10)
    print(len(claims), flush=True)
    if sys.argv[4:] == ["fork"]:
        import os, time
        if os.fork() == 0:
            time.sleep(3600)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@asynccontextmanager
async def mortal(url: str, worker: str, *how: str, port: str = "") -> AsyncIterator[int]:
    """Another process with a worker that has claimed all there was; yields its id.

    Its lease is ten minutes: whatever is taken over from it within a test's timeout was taken
    over on other evidence.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MORTAL, url, worker, port, *how),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"1\n"
        yield process.pid
    finally:
        with suppress(ProcessLookupError):  # it has left no children
            os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()  # to the end of its output, so that the pipe is closed


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def move_away(url: str, worker: str) -> None:
    """Make it look from here as if the worker's process were on another machine."""
    await ask(url, "UPDATE workers SET machine = 'elsewhere' WHERE worker = %s", worker)


@pytest.mark.parametrize("how", [(), ("fork",)], ids=["alone", "with a child"])
async def test_a_killed_process_on_the_same_machine_is_dead_by_its_lock_file(
    postgres_url: str, how: tuple[str, ...]
) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock, "w2")
        session = (await admit(store, new_session(clock))).session_id
        async with mortal(postgres_url, "w1", *how) as pid:
            assert not await store.work.claim("w2", 10)
            assert not await look(store)
            os.kill(pid, signal.SIGKILL)
            assert await watch(store) == {"w1": "lock_file"}
        [claim] = await store.work.claim("w2", 10)
        assert (claim.session_id, claim.evidence) == (session, "lock_file")


@pytest.mark.parametrize("how", [(), ("fork",)], ids=["alone", "with a child"])
async def test_a_killed_process_on_another_machine_is_dead_if_its_port_answered_and_refuses(
    postgres_url: str, how: tuple[str, ...]
) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock, "w2")
        await admit(store, new_session(clock))
        async with mortal(postgres_url, "w1", *how, port="127.0.0.1:0") as pid:
            await move_away(postgres_url, "w1")
            assert not await look(store)
            await until(lambda: "w1" in store.work.observer._answered)
            os.kill(pid, signal.SIGKILL)
            assert await watch(store) == {"w1": "port_refused"}
        [claim] = await store.work.claim("w2", 10)
        assert claim.evidence == "port_refused"


async def test_an_observer_that_the_port_never_answered_leaves_a_worker_to_its_lease(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock, "w2")
        await admit(store, new_session(clock))
        async with mortal(postgres_url, "w1", port="127.0.0.1:0") as pid:
            await move_away(postgres_url, "w1")
            os.kill(pid, signal.SIGKILL)
            await until_silent(store, "w1")
            await until_refused(store, "w1")
            await asyncio.sleep(MISSING_FOR)
            assert not await look(store)
        await ask(postgres_url, "UPDATE workers SET lease_until = 0, lease = 1")
        await enlist(store, clock, "w3")
        [claim] = await store.work.claim("w3", 10)
        assert claim.evidence == "lease_expired"


async def test_a_process_that_stands_still_is_left_to_its_lease(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await enlist(store, clock, "w2")
        await admit(store, new_session(clock))
        async with mortal(postgres_url, "w1", port="127.0.0.1:0") as pid:
            await move_away(postgres_url, "w1")
            await look(store)
            await until(lambda: "w1" in store.work.observer._answered)
            os.kill(pid, signal.SIGSTOP)
            # Its connections are lost as well; its port is still open, and nobody answers there.
            await ask(postgres_url, END_CONNECTIONS_OF_OTHERS)
            await until_silent(store, "w1")
            for _ in range(3):
                assert not await look(store)


END_CONNECTIONS_OF_OTHERS = (
    "SELECT pg_terminate_backend(k.pid) FROM pg_locks AS k JOIN workers AS w"
    " ON k.objid::bigint = w.sign WHERE k.locktype = 'advisory' AND w.worker = 'w1'"
)


async def test_a_worker_in_another_container_with_a_file_of_the_same_name_is_not_mixed_up(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        lease = await enlist(one, clock, "w1")
        await enlist(two, clock, "w2")
        await ask(postgres_url, "UPDATE workers SET lock_inode = '1' WHERE worker = 'w1'")
        await lease.let_go()  # type: ignore[attr-defined]
        for _ in range(3):
            assert not await look(two)
        assert {info.worker for info in await two.work.workers()} == {"w1", "w2"}


async def test_a_name_in_a_row_never_leads_out_of_the_directory(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        lease = await enlist(one, clock, "w1")
        held = lease._evidence._lock  # type: ignore[attr-defined]
        name = f"../{held.path.parent.name}/{held.path.name}"  # the same file, by a path
        await ask(postgres_url, "UPDATE workers SET lock_name = %s", name)
        await lease.let_go()  # type: ignore[attr-defined]
        assert not await look(two)
        await ask(postgres_url, "UPDATE workers SET lock_name = %s", held.path.name)
        assert await look(two) == {"w1": "lock_file"}


@pytest.mark.parametrize("cut", [0.1, 0.5, 3, 10])
async def test_a_cut_shorter_than_the_lease_is_no_death(postgres_url: str, cut: float) -> None:
    """Whatever proves a death: a lock file, a port, or nothing but the lease."""
    wire = Wire(postgres_url)
    async with (
        wire.opened() as port,
        opened(through(postgres_url, port)) as cut_off,
        opened(postgres_url) as other,
    ):
        leases = [
            await cut_off.work.enlist(worker, 600_000)
            for worker in (named("near"), named("far"), named("unseen"))
        ]
        with_port = await cut_off.work.enlist(named("port", "127.0.0.1:0"), 600_000)
        for worker in ("far", "port"):
            await move_away(postgres_url, worker)
        await ask(postgres_url, "UPDATE workers SET lock_name = '' WHERE worker = 'unseen'")
        await enlist(other, clock, "w2")
        await look(other)
        await until(lambda: "port" in other.work.observer._answered)
        wire.lets_nobody_through = True
        wire.cut()
        began = clock.monotonic()
        await until_silent(other, "near", "far", "unseen", "port")
        found = await look(other)
        while clock.monotonic() - began < cut:
            await asyncio.sleep(0.1)
            found |= await look(other)
        assert found == {}
        wire.lets_nobody_through = False
        for lease in (*leases, with_port):
            assert (await asyncio.to_thread(lease.renew)).alive


def named(worker: str, address: str = "") -> WorkerInfo:
    began = date_of(clock.now())
    return WorkerInfo(worker=worker, host="here", pid=1, started_at=began, liveness_address=address)


async def look(store: PostgresStore) -> dict[str, TakeoverEvidence]:
    """Have the store look now, however lately it did; its questions to ports are answered."""
    store.work.observer._looked_at = float("-inf")
    found = dict(await store.work.find_dead())
    await asyncio.gather(*store.work.observer._probes.values(), return_exceptions=True)
    return found


async def watch(store: PostgresStore) -> dict[str, TakeoverEvidence]:
    found: dict[str, TakeoverEvidence] = {}
    interval = DeadWorkerDetector(store, 0.3, lambda: None).interval
    async with asyncio.timeout(TIMEOUT):
        while not found:
            found |= await store.work.find_dead()
            await asyncio.sleep(interval)
    return found


async def until_silent(store: PostgresStore, *workers: str) -> None:
    """Wait until the server sees none of the workers' connections."""
    async with asyncio.timeout(TIMEOUT):
        while not set(workers) <= {w.worker for w in await store.work.workers() if w.silent}:
            pass


async def until_refused(store: PostgresStore, worker: str) -> None:
    async with asyncio.timeout(TIMEOUT):
        while worker not in store.work.observer._refused:
            await look(store)


@pytest.fixture
def own_server() -> Iterator[Server]:
    """A server that the test may stop and start."""
    server = Server.in_new_directory("outlast-postgres-")
    server.create()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


async def test_a_restart_of_the_server_kills_no_worker_and_loses_no_commit(
    own_server: Server,
) -> None:
    async with opened(own_server.url) as one, opened(own_server.url) as two:
        lease = await enlist(one, clock, "w1", lease=60_000)
        other = await enlist(two, clock, "w2", lease=60_000)
        claim = await start_and_claim(one, clock)
        watches = [Watch(store) for store in (one, two)]
        watching = [ServiceLoop("watch", watch, clock) for watch in watches]
        for loop in watching:
            loop.start()
        writing = asyncio.create_task(write_many(one, claim, 60))
        for _ in range(2):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own_server.stop)
            await asyncio.to_thread(own_server.start)
            await asyncio.to_thread(lease.renew)
            await asyncio.to_thread(other.renew)
        async with asyncio.timeout(TIMEOUT):
            await writing
        enough = 6 + max(watch.rounds for watch in watches)
        await until(lambda: all(watch.rounds >= enough for watch in watches))
        for loop in watching:
            await loop.stop()
        assert [watch.deaths for watch in watches] == [[], []]
        assert await end_of(one, claim.session_id) == 62


class Watch:
    """A death watch that keeps the names."""

    interval = 0.3

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.deaths: list[str] = []
        self.rounds = 0

    async def run_once(self) -> int:
        found = await self._store.work.find_dead()
        self.deaths += found
        self.rounds += 1
        return len(found)


async def write_many(store: PostgresStore, claim: Claim, count: int) -> None:
    """Commit so often, in each epoch of the server as its owner does that has lost nothing."""
    for number in range(count):
        while True:
            try:
                [result] = await store.log.commit([commit(claim, delta(), number=number)])
            except StoreUnavailable:
                await asyncio.sleep(0.05)
                continue
            if isinstance(result, Committed):
                break
            assert result.reason == "history_changed"
            claim = replace(claim, epoch=result.epoch)
        await asyncio.sleep(0.02)


async def test_a_worker_that_dies_with_the_server_is_found_when_that_is_back(
    own_server: Server,
) -> None:
    async with opened(own_server.url) as store:
        await enlist(store, clock, "w2")
        await admit(store, new_session(clock))
        async with mortal(own_server.url, "w1") as pid:
            await asyncio.to_thread(own_server.stop)
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(own_server.start)
            assert await watch(store) == {"w1": "lock_file"}
        [claim] = await store.work.claim("w2", 10)
        assert claim.evidence == "lock_file"


@pytest.mark.parametrize("how", ["started", "recovered"])
async def test_no_lease_has_run_out_before_the_server_has_been_up_for_as_long(
    own_server: Server, how: str
) -> None:
    url = own_server.url
    async with opened(url) as store:
        await enlist(store, clock, "w1", lease=600_000)
        await start_and_claim(store, clock)
        await enlist(store, clock, "w2")
        started = await start_time(url)
        if how == "started":
            await asyncio.to_thread(own_server.stop)
            await asyncio.to_thread(own_server.start)
        else:
            await kill_a_backend(url)
        assert not await store.work.claim("w2", 10)  # from then on the server counts as up
        assert (await start_time(url) == started) == (how == "recovered")
        await set_leases(url, "lease_until = 1")
        assert not await store.work.claim("w2", 10)
        await set_leases(url, "lease = 1 WHERE worker = 'w1'")
        [claim] = await store.work.claim("w2", 10)
        assert claim.evidence == "lease_expired"


async def set_leases(url: str, change: str) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(f"UPDATE outlast.workers SET {change}".encode())  # noqa: S608 - ours


async def start_time(url: str) -> object:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute("SELECT pg_postmaster_start_time()")
        return await cursor.fetchone()


async def kill_a_backend(url: str) -> None:
    """Let a process of a server that has been up for long crash; everybody is dropped by that."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as bystander:
        await bystander.execute("UPDATE outlast.server SET open_since = 0")
        async with await psycopg.AsyncConnection.connect(url) as victim:
            os.kill(victim.info.backend_pid, signal.SIGKILL)
            with pytest.raises(psycopg.OperationalError):
                await bystander.execute("SELECT pg_sleep(%s)", [TIMEOUT])


async def test_a_worker_that_lost_its_direct_connection_goes_on_writing(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(f"{postgres_url}&direct=127.0.0.1:{port}") as store:
        claim = await start_and_claim(store, clock)
        wire.lets_nobody_through = True
        wire.cut()
        await wire.refused.wait()
        async with asyncio.timeout(TIMEOUT):
            assert (await write(store, commit(claim, delta()))).first_offset == 3


async def test_a_worker_shows_its_sign_on_its_direct_connection_and_on_that_of_its_lease(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with (
        wire.opened() as port,
        opened(f"{postgres_url}&direct=127.0.0.1:{port}") as store,
        opened(postgres_url) as other,
    ):
        await enlist(store, clock, "w1")
        direct = store._access.parts().heartbeat
        wire.lets_nobody_through = True
        assert direct._link
        await ask(postgres_url, f"SELECT pg_terminate_backend({direct._link.backend})")
        await wire.refused.wait()
        assert [info.silent for info in await other.work.workers()] == [False]
        wire.cut()
        await until_silent(other, "w1")


async def test_an_idle_worker_asks_less_than_twice_a_second(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        worker = Worker(store, {}, clock, WorkerSettings(name="w1"))
        await worker.start()
        await asyncio.sleep(0.5)
        before = wire.transactions
        await asyncio.sleep(4)
        assert wire.transactions - before < 8
        await until(lambda: wire.transactions >= before + 3)  # it does ask
        await worker.stop()


async def test_a_name_that_a_living_worker_has_is_refused(postgres_url: str) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        await enlist(one, clock, "w1")
        with pytest.raises(StoreUnavailable, match="another name"):
            await enlist(two, clock, "w1")


async def test_a_store_that_was_opened_before_a_fork_refuses_to_go_on(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        await admit(store, new_session(clock))
        store._access._pid = -1  # as it looks from another process
        with pytest.raises(UsedAfterFork):
            await store.listing.sessions()
        store._access._pid = os.getpid()


# Hints


async def test_other_processes_are_told_at_most_once_in_twenty_milliseconds(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        session = (await admit(one, new_session(clock))).session_id
        heard: list[tuple[str, bool]] = []
        told_at: list[float] = []
        two.work.listen(lambda *hint: heard.append(hint))
        await until(lambda: bool(heard))  # the first hint says that the connection is there
        notifier = one._access.parts().notifier
        notify = notifier._notify

        async def note(statement: Statement) -> None:
            told_at.append(clock.monotonic())
            await notify(statement)

        monkeypatch.setattr(notifier, "_notify", note)
        sent = 0
        while len(told_at) < 4:
            await one.log.admit([message(clock, session) for _ in range(10)])
            sent += 10
        await until(lambda: (session, True) in heard)
        pauses = [later - earlier for earlier, later in pairwise(told_at)]
        assert len(told_at) < sent
        assert sum(pauses) > 0.9 * 0.02 * len(pauses)


async def test_hints_of_many_sessions_become_a_hint_of_nothing_in_particular(
    postgres_url: str,
) -> None:
    async with opened(postgres_url) as one, opened(postgres_url) as two:
        heard: list[tuple[str, bool]] = []
        two.work.listen(lambda *hint: heard.append(hint))
        await until(lambda: bool(heard))
        heard.clear()
        one._access.parts().notifier.tell({f"ses_{n:026}": False for n in range(500)})
        await until(lambda: bool(heard))
        assert heard == [("", True)]
