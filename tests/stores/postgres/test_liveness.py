"""Who lives and who is dead, on a PostgreSQL that is killed, restarted and asked little."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import psycopg
import pytest
from postgres_proxy import Wire, through
from postgres_server import Server
from rival import ask, opened

from outlast import WorkerSettings
from outlast.clock import Clock
from outlast.engine.maintenance import DeadWorkerDetector
from outlast.engine.service import ServiceLoop
from outlast.engine.worker import Worker
from outlast.errors import StoreUnavailable, UsedAfterFork
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.pipeline import Answer, PipelinedConnection
from outlast.stores.postgres.statement import Statement
from outlast.stores.postgres.url import read_url
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
PATIENCE = 60.0

MORTAL = """
import asyncio, sys
from outlast.clock import Clock
from outlast.stores.postgres import PostgresStore
from outlast.testing.contract.builder import enlist

async def main():
    store = PostgresStore(sys.argv[1])
    await store.migrate()
    await enlist(store, Clock(), sys.argv[2])
    claims = await store.work.claim(sys.argv[2], 10)
    print(len(claims), flush=True)
    if sys.argv[3:] == ["fork"]:
        import os, time
        if os.fork() == 0:
            time.sleep(3600)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


@asynccontextmanager
async def mortal(url: str, worker: str, *how: str) -> AsyncIterator[int]:
    """Another process with a worker that has claimed all there was; yields its id."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MORTAL, url, worker, *how),
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
    async with asyncio.timeout(PATIENCE):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def wait_for_uptime(url: str, seconds: float) -> None:
    """Wait until the server has been up for a lease: before, nobody is declared dead."""
    async with await psycopg.AsyncConnection.connect(read_url(url).direct) as connection:
        await connection.execute(
            "SELECT pg_sleep(greatest(0, %s - extract(epoch FROM"
            " clock_timestamp() - pg_postmaster_start_time())))",
            [seconds],
        )


@pytest.mark.parametrize("how", [(), ("fork",)], ids=["alone", "with a child"])
async def test_a_killed_process_is_found_dead_well_within_a_second(
    postgres_url: str, how: tuple[str, ...]
) -> None:
    await wait_for_uptime(postgres_url, 2)
    async with opened(postgres_url) as store:
        await enlist(store, clock, "w2")
        session = (await admit(store, new_session(clock))).session_id
        await shorten_leases(postgres_url)
        async with mortal(postgres_url, "w1", *how) as pid:
            await shorten_leases(postgres_url)
            assert not await store.work.claim("w2", 10)
            began = clock.monotonic()
            os.kill(pid, signal.SIGKILL)
            found = await watch(store)
            took = clock.monotonic() - began
        assert found == ["w1"]
        assert took < PATIENCE
        [claim] = await store.work.claim("w2", 10)
        assert claim.session_id == session


async def shorten_leases(url: str) -> None:
    """Make the server's uptime a full lease for the workers there are."""
    async with await psycopg.AsyncConnection.connect(read_url(url).direct) as connection:
        await connection.execute("UPDATE workers SET lease = 1000")


async def watch(store: PostgresStore) -> list[str]:
    found: list[str] = []
    watch = DeadWorkerDetector(store, 0.3, lambda: None)
    async with asyncio.timeout(PATIENCE):
        while not found:
            found += await store.work.find_dead()
            await asyncio.sleep(watch.interval)
    return found


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
        async with asyncio.timeout(PATIENCE):
            await writing
        await until(
            lambda: all(store._access.parts().heartbeat._shown.is_set() for store in (one, two))
        )
        async with await psycopg.AsyncConnection.connect(own_server.url) as connection:
            await connection.execute("UPDATE outlast.workers SET lease = 1")
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


async def write_many(store: PostgresStore, claim: object, count: int) -> None:
    for number in range(count):
        while True:
            try:
                await write(store, commit(claim, delta(), number=number))  # type: ignore[arg-type]
                break
            except StoreUnavailable:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.02)


async def test_nobody_is_declared_dead_before_the_server_has_been_up_for_a_lease(
    own_server: Server,
) -> None:
    async with opened(own_server.url) as store:
        lease = await enlist(store, clock, "w1", lease=60_000)
        await enlist(store, clock, "w2")
        await lease.let_go()  # type: ignore[attr-defined]
        await store.work.claim("w2", 1)  # from then on the server counts as up
        for _ in range(2):
            assert not await store.work.find_dead()
            store.work.observer._looked_at = float("-inf")
        assert [info.worker for info in await store.work.workers()] == ["w1", "w2"]
        async with await psycopg.AsyncConnection.connect(own_server.url) as connection:
            await connection.execute("UPDATE outlast.workers SET lease = 1")
        assert [info.worker for info in await store.work.workers()] == ["w2"]
        assert await watch(store) == ["w1"]


async def test_nobody_is_declared_dead_before_a_server_that_crashed_has_been_up_for_a_lease(
    own_server: Server,
) -> None:
    async with opened(own_server.url) as store:
        lease = await enlist(store, clock, "w1", lease=60_000)
        await enlist(store, clock, "w2")
        await store.work.claim("w2", 1)
        started = await start_time(own_server.url)
        await kill_a_backend(own_server.url)
        await store.work.claim("w2", 1)  # from then on the server counts as up
        await lease.let_go()  # type: ignore[attr-defined]
        for _ in range(2):
            assert not await store.work.find_dead()
            store.work.observer._looked_at = float("-inf")
        assert await start_time(own_server.url) == started
        async with await psycopg.AsyncConnection.connect(own_server.url) as connection:
            await connection.execute("UPDATE outlast.workers SET lease = 1")
        assert await watch(store) == ["w1"]


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
                await bystander.execute("SELECT pg_sleep(%s)", [PATIENCE])


async def test_a_worker_that_lost_its_direct_connection_shows_its_sign_before_it_writes(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(f"{postgres_url}&direct=127.0.0.1:{port}") as store:
        claim = await start_and_claim(store, clock)
        shown = store._access.parts().heartbeat._shown
        wire.lets_nobody_through = True
        wire.cut()
        await until(lambda: not shown.is_set())
        writing = asyncio.create_task(write(store, commit(claim, delta())))
        await asyncio.wait([writing], timeout=0.3)
        assert await end_of(store, claim.session_id) == 2
        wire.lets_nobody_through = False
        async with asyncio.timeout(PATIENCE):
            assert (await writing).first_offset == 3
        assert shown.is_set()
        await shorten_leases(postgres_url)
        assert not await store.work.find_dead()


async def test_a_worker_that_lost_its_direct_connection_is_seen_to_live_by_that_of_its_lease(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    await wait_for_uptime(postgres_url, 2)
    async with (
        wire.opened() as port,
        opened(f"{postgres_url}&direct=127.0.0.1:{port}") as store,
        opened(postgres_url) as other,
    ):
        lease = await enlist(store, clock, "w1")
        await enlist(other, clock, "w2")
        await other.work.claim("w2", 1)  # from then on the server counts as up
        await shorten_leases(postgres_url)
        direct = store._access.parts().heartbeat
        wire.lets_nobody_through = True
        assert direct._link
        await ask(postgres_url, f"SELECT pg_terminate_backend({direct._link.backend})")
        await until(lambda: not direct._shown.is_set())
        for _ in range(3):
            other.work.observer._looked_at = float("-inf")
            assert not await other.work.find_dead()
        await lease.let_go()  # type: ignore[attr-defined]
        assert await watch(other) == ["w1"]


async def test_a_worker_that_lost_all_connections_shows_its_sign_before_it_writes_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pooled, direct = Wire(postgres_url), Wire(postgres_url)
    send = PipelinedConnection.send

    def cut_off(link: PipelinedConnection, statements: Sequence[Statement]) -> Answer:
        """Let the network break as the commit is about to leave."""
        if any(b"commit_alone" in statement.text for statement in statements):
            monkeypatch.undo()
            direct.lets_nobody_through = True
            direct.cut()
            pooled.cut()
        return send(link, statements)

    async with pooled.opened() as port, direct.opened() as other:
        url = f"{through(postgres_url, port)}&direct=127.0.0.1:{other}"
        async with opened(url) as store:
            claim = await start_and_claim(store, clock)
            monkeypatch.setattr(PipelinedConnection, "send", cut_off)
            writing = asyncio.create_task(write(store, commit(claim, delta())))
            await direct.refused.wait()
            await asyncio.wait([writing], timeout=0.5)
            assert not writing.done()
            direct.lets_nobody_through = False
            async with asyncio.timeout(PATIENCE):
                assert (await writing).first_offset == 3


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
