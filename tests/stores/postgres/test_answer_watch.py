"""Connections that nobody closes, and that give no answer: a proxy takes bytes and keeps them."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from postgres_proxy import Wire, through
from postgres_server import Server
from rival import ask, opened, rivalling

from outlast import Outlast, WorkerSettings
from outlast.clock import Clock
from outlast.errors import NotInTransaction, StoreUnavailable
from outlast.store import Claim, Refused
from outlast.stores.postgres import PostgresStore, answer_watch, liveness, parts, reconnect
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    end_of,
    enlist,
    new_session,
    start_and_claim,
    write,
)

clock = Clock()
TIMEOUT = 60.0


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server asked after a moment of silence; nothing else is different."""
    monkeypatch.setattr(answer_watch, "TICK", 0.1)
    monkeypatch.setattr(answer_watch, "UNDER_WAY", 0.2)


@asynccontextmanager
async def behind_a_proxy(url: str, more: str = "") -> AsyncIterator[tuple[Wire, PostgresStore]]:
    """A store whose connections all lead through a proxy, leases aside."""
    wire = Wire(url)
    host = url.partition("@")[2].partition("/")[0]
    async with (
        wire.opened() as port,
        opened(f"{through(url, port)}&direct={host}{more}") as store,
    ):
        yield wire, store


@pytest.mark.parametrize("what", ["lose_answers", "fall_silent"])
async def test_a_commit_whose_answer_never_comes_is_written_once_and_answered(
    postgres_url: str, what: str
) -> None:
    async with behind_a_proxy(postgres_url) as (wire, store):
        claim = await start_and_claim(store, clock)
        getattr(wire, what)()
        async with asyncio.timeout(TIMEOUT):
            assert (await write(store, commit(claim, delta()))).first_offset == 3
            assert await end_of(store, claim.session_id) == 3


async def test_a_query_whose_answer_never_comes_is_asked_on_another_connection(
    postgres_url: str,
) -> None:
    async with behind_a_proxy(postgres_url) as (wire, store):
        session = (await admit(store, new_session(clock))).session_id
        await store.listing.sessions()
        wire.fall_silent()
        async with asyncio.timeout(TIMEOUT):
            assert [info.session_id for info in await store.listing.sessions()] == [session]


async def test_a_connection_that_only_listens_is_opened_again_when_it_is_silent(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "PING_EVERY", 0.1)
    wire = Wire(postgres_url)
    async with (
        wire.opened() as port,
        opened(f"{postgres_url}&direct=127.0.0.1:{port}") as store,
        opened(postgres_url) as other,
    ):
        heard: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
        store.work.listen(lambda *hint: heard.put_nowait(hint))
        async with asyncio.timeout(TIMEOUT):
            assert await heard.get() == ("", True)  # it listens
            wire.fall_silent()
            assert await heard.get() == ("", True)  # it listens again
            session = (await admit(other, new_session(clock))).session_id
            assert await heard.get() == (session, True)


async def test_a_statement_that_waits_for_a_lock_is_waited_for_and_not_sent_again(
    postgres_url: str,
) -> None:
    async with behind_a_proxy(postgres_url) as (wire, store), rivalling(postgres_url) as rival:
        claim = await start_and_claim(store, clock)
        await rival.run("SELECT 1 FROM sessions FOR UPDATE")
        sent, writer = wire.transactions, store._access.parts().writer._connection
        link = writer._link
        writing = asyncio.create_task(write(store, commit(claim, delta())))
        await rival.has_waiting()
        await until_asked_about(wire, sent, times=3)
        assert not writing.done()
        await rival.commit()
        assert (await writing).first_offset == 3
        assert writer._link is link


async def until_asked_about(wire: Wire, sent: int, times: int) -> None:
    """Wait until the server was asked so often what the silent backend does."""
    async with asyncio.timeout(TIMEOUT):
        while wire.transactions < sent + 1 + times:  # noqa: ASYNC110 - the proxy counts
            await asyncio.sleep(0.01)


async def test_a_transaction_whose_commit_is_not_answered_is_found_out(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_silence(monkeypatch)
    async with behind_a_proxy(postgres_url) as (wire, store):
        claim = await start_and_claim(store, clock)
        async with asyncio.timeout(TIMEOUT), store.log.transaction() as tx:
            await tx.execute("CREATE TABLE contract_notes (note integer)")
            wire.fall_silent()
            assert await tx.commit(commit(claim, delta())) == Refused("undone")
        assert await end_of(store, claim.session_id) == 2
        assert await ask(postgres_url, "SELECT to_regclass('contract_notes')") == [(None,)]


async def test_a_transaction_that_is_not_answered_comes_to_its_end(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_silence(monkeypatch)
    async with behind_a_proxy(postgres_url) as (wire, store):
        await start_and_claim(store, clock)
        async with asyncio.timeout(TIMEOUT), store.log.transaction(limit=0.5) as tx:
            await tx.execute("SELECT 1")
            wire.fall_silent()
            with pytest.raises(NotInTransaction, match="open for more than"):
                await tx.execute("SELECT 1")


def shorten_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("transaction", "transaction_pool", "answer_watch"):
        monkeypatch.setattr(f"outlast.stores.postgres.{module}.SILENCE", 0.5)


async def test_a_proxy_that_takes_everything_and_answers_nothing_is_a_server_that_is_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_silence(monkeypatch)
    monkeypatch.setattr(reconnect, "TIMEOUT", 0.5)
    async with behind_a_proxy(postgres_url, "&connect_timeout=2") as (wire, store):
        claim = await start_and_claim(store, clock)
        wire.takes_everything = True
        wire.fall_silent()
        for asked in (write(store, commit(claim, delta())), store.listing.sessions()):
            async with asyncio.timeout(TIMEOUT):
                with pytest.raises(StoreUnavailable):
                    await asked
        assert wire.taken.is_set()
        wire.takes_everything = False
        wire.cut()
        async with asyncio.timeout(TIMEOUT):
            assert (await write(store, commit(claim, delta()))).first_offset == 3


# A server that hangs: it commits nothing without a standby, and there is none


@pytest.fixture
def own_server() -> Iterator[Server]:
    server = Server.in_new_directory("outlast-postgres-")
    server.create()
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.remove()


@asynccontextmanager
async def hanging(url: str) -> AsyncIterator[None]:
    await set_standby(url, "*")
    try:
        yield
    finally:
        await set_standby(url, "")


async def set_standby(url: str, name: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
        await connection.execute("SELECT pg_reload_conf()")
        while await commits(url) == bool(name):
            pass


async def commits(url: str) -> bool:
    """Whether a transaction that writes something is committed."""
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute("SELECT pg_logical_emit_message(true, 'test', 'nothing')")
        try:
            await asyncio.wait_for(connection.commit(), 0.5)
        except TimeoutError:
            return False
        return True


async def test_renewals_on_a_server_that_hangs_leave_no_backend_behind(
    own_server: Server,
) -> None:
    async with opened(own_server.url) as store:
        lease = await enlist(store, clock, lease=6_000)
        claim: Claim = await start_and_claim(store, clock)
        async with hanging(own_server.url):
            for _ in range(4):
                with pytest.raises(StoreUnavailable):
                    await asyncio.to_thread(lease.renew)
            assert await count_hanging(own_server.url) <= 1
        assert (await asyncio.to_thread(lease.renew)).alive
        assert (await write(store, commit(claim, delta()))).first_offset == 3


async def count_hanging(url: str) -> int:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        cursor = await connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'outlast' AND state = 'active'"
        )
        [count] = await cursor.fetchone() or (0,)
        return int(count)


async def test_opening_an_app_on_a_server_that_hangs_can_be_cancelled(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CLOSING", 0.5)
    async with opened(own_server.url):
        pass  # the schema is there
    app = Outlast([], store=own_server.url, worker=WorkerSettings(lease=6))
    async with hanging(own_server.url), asyncio.timeout(TIMEOUT):
        opening = asyncio.create_task(app.open())
        while not await count_hanging(own_server.url):
            assert not opening.done()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        while await count_hanging(own_server.url):
            pass  # it leaves nothing behind
    assert not app.is_open


# A server that is full


async def test_a_worker_that_starts_while_the_server_is_full_waits_and_a_program_is_told(
    own_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reconnect, "TIMEOUT", 0.1)
    async with opened(own_server.url):
        pass
    worker = Outlast([], store=own_server.url, worker=WorkerSettings(poll=0.05))
    program = Outlast([], store=own_server.url, worker=None)
    async with full(own_server.url), asyncio.timeout(TIMEOUT):
        opening = asyncio.create_task(worker.open())
        with pytest.raises(StoreUnavailable, match="max_connections"):
            await program.open()
        while not waits(caplog):  # noqa: ASYNC110 - a log line
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)  # for many tries more, and not a line
        assert not opening.done()
    async with asyncio.timeout(TIMEOUT):
        await opening
    assert worker.worker is not None
    assert waits(caplog) == 1
    await worker.close()


async def test_a_worker_that_waits_for_a_full_server_is_ended_by_a_signal(
    own_server: Server, tmp_path: Path
) -> None:
    async with opened(own_server.url):
        pass
    (tmp_path / "idle.py").write_text(
        f"from outlast import Outlast\napp = Outlast([], store={own_server.url!r})\n"
    )
    async with full(own_server.url), asyncio.timeout(TIMEOUT):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "outlast.cli", "worker", "idle:app"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        while b"the worker waits for the store" not in await process.stderr.readline():
            assert not process.stderr.at_eof()
        process.send_signal(signal.SIGTERM)
        await process.communicate()
        assert process.returncode == 0


def waits(caplog: pytest.LogCaptureFixture) -> int:
    return [record.message for record in caplog.records].count("the worker waits for the store")


@asynccontextmanager
async def full(url: str) -> AsyncIterator[None]:
    """Take all connections that a server has."""
    taken: list[psycopg.AsyncConnection[object]] = []
    try:
        while True:
            try:
                taken.append(await psycopg.AsyncConnection.connect(url))
            except psycopg.OperationalError:
                break
        yield
    finally:
        for connection in taken:
            await connection.close()
