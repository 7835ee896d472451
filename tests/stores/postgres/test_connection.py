"""Connections that are lost: nothing is written twice, nothing is lost, nothing is given away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from urllib.parse import urlsplit

import psycopg
import pytest
from known import known_as
from postgres_proxy import Pooler, Wire, through
from rival import ask, opened, rivalling

from outlast.clock import Clock
from outlast.errors import (
    InvalidInput,
    OutlastError,
    StoreError,
    StoreUnavailable,
    UnsupportedStore,
)
from outlast.store import AdmissionReceipt, Committed, Refused
from outlast.stores.postgres import PostgresStore, writer
from outlast.stores.postgres import reconnect as line
from outlast.stores.postgres.error import ServerAway
from outlast.stores.postgres.pipeline import Answer, PipelinedConnection
from outlast.stores.postgres.statement import Statement, load_queries
from outlast.stores.postgres.timeline import ServerGuard
from outlast.stores.postgres.url import read_url
from outlast.stores.postgres.writer import LARGEST_GROUP, MOST_LOSSES
from outlast.testing.contract.builder import (
    admit,
    claim_one,
    commit,
    delta,
    end_of,
    enlist,
    message,
    new_session,
    park,
    start_and_claim,
    write,
)

clock = Clock()

HANG_UP = """
CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';
CREATE TRIGGER hang_up BEFORE INSERT ON sessions
    FOR EACH ROW WHEN (NEW.agent = 'deadly') EXECUTE FUNCTION hang_up();
"""


async def end_backends(url: str) -> None:
    """End all other sessions of the database, as an administrator does."""
    direct = read_url(url).direct
    async with await psycopg.AsyncConnection.connect(direct, autocommit=True) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND application_name = %s",
            [read_url(url).schema],
        )


def named(url: str) -> str:
    """A URL whose connections bear the schema's name, so that a test ends only its own."""
    return f"{url}&application_name={read_url(url).schema}"


async def test_a_commit_whose_acknowledgement_is_lost_is_written_once(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        claim = await start_and_claim(store, clock)
        wire.loses_the_answer_to = b"a rare word"
        written = await write(store, commit(claim, delta("a rare word")))
        assert wire.lost.is_set()
        assert written.first_offset == 3
        assert await end_of(store, claim.session_id) == 3
        await write(store, commit(claim, delta(), number=1))


async def test_an_admission_whose_acknowledgement_is_lost_is_no_duplicate(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        session = (await admit(store, new_session(clock))).session_id
        wire.loses_the_answer_to = b"a rare word"
        said = message(clock, session, "a rare word")
        receipt = await admit(store, said)
        assert wire.lost.is_set()
        assert (receipt.offset, receipt.duplicate) == (3, False)
        assert await end_of(store, session) == 3
        assert (await admit(store, said)).duplicate


async def test_when_much_waits_a_second_group_goes_out_before_the_answer_to_the_first(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[int] = []
    send = PipelinedConnection.send

    def noting(link: PipelinedConnection, statements: Sequence[Statement]) -> Answer:
        answer = send(link, statements)
        under_way.append(link.load)
        return answer

    async with opened(postgres_url) as store:
        monkeypatch.setattr(PipelinedConnection, "send", noting)
        await admit(store, new_session(clock))
        assert max(under_way) == 1

        many = [new_session(clock) for _ in range(3 * LARGEST_GROUP)]
        await asyncio.gather(*(admit(store, one) for one in many))

        assert max(under_way) == 2
        assert len(await store.listing.sessions(limit=1000)) == len(many) + 1


@pytest.mark.parametrize("place", [0, LARGEST_GROUP - 1, LARGEST_GROUP, 2 * LARGEST_GROUP])
async def test_of_groups_under_way_together_each_is_written_once_if_the_wire_is_cut(
    postgres_url: str, place: int
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        many = [new_session(clock) for _ in range(3 * LARGEST_GROUP)]
        many[place] = new_session(clock, "a rare word")
        wire.loses_the_answer_to = b"a rare word"

        receipts = await asyncio.gather(*(admit(store, one) for one in many))

        assert wire.lost.is_set()
        assert not any(receipt.duplicate for receipt in receipts)
        ends = [await end_of(store, receipt.session_id) for receipt in receipts]
        assert set(ends) == {2}


@pytest.mark.parametrize("place", [0, LARGEST_GROUP, 2 * LARGEST_GROUP])
async def test_of_groups_under_way_together_one_that_cannot_be_written_fails_alone(
    postgres_url: str, place: int
) -> None:
    async with opened(postgres_url) as store:
        many = [new_session(clock) for _ in range(3 * LARGEST_GROUP)]
        many[place] = new_session(clock, at=2**70)  # more than a column holds

        sent = (admit(store, one) for one in many)
        receipts = await asyncio.gather(*sent, return_exceptions=True)

        assert isinstance(receipts.pop(place), OutlastError)
        del many[place]
        told = [receipt.session_id for receipt in receipts if isinstance(receipt, AdmissionReceipt)]
        assert told == [one.session_id for one in many]
        assert {session.end for session in await store.listing.sessions(limit=1000)} == {2}


async def test_of_groups_under_way_together_everybody_is_told_that_the_server_is_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "TIMEOUT", 0.05)
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        await admit(store, new_session(clock))
        many = [new_session(clock) for _ in range(3 * LARGEST_GROUP)]
        wire.lets_nobody_through = True
        wire.cut()

        sent = (admit(store, one) for one in many)
        told = await asyncio.gather(*sent, return_exceptions=True)

        assert {type(error) for error in told} == {ServerAway}
        wire.lets_nobody_through = False
        again = await asyncio.gather(*(admit(store, one) for one in many))
        assert [receipt.session_id for receipt in again] == [one.session_id for one in many]


async def test_a_claim_whose_acknowledgement_is_lost_is_made_again(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        await enlist(store, clock)
        session = (await admit(store, new_session(clock))).session_id
        wire.loses_the_answer_to = b"claim"
        claim = await claim_one(store)
        assert wire.lost.is_set()
        assert (claim.session_id, claim.fence) == (session, 2)
        await write(store, commit(claim, delta()))


async def test_a_transaction_whose_acknowledgement_is_lost_is_found_to_have_landed(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        claim = await start_and_claim(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute("CREATE TABLE contract_notes (note integer)")
            wire.loses_the_answer_to = b"COMMIT"
            written = await tx.commit(commit(claim, delta()))
        assert wire.lost.is_set()
        assert written == (await write(store, commit(claim, delta())))
        async with store.log.transaction() as tx:
            assert await tx.fetch("SELECT count(*) FROM contract_notes") == [(0,)]


async def test_wherever_a_renewal_or_a_release_is_cut_nothing_is_left_locked(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        lease = await enlist(store, clock)
        before = wire.halfway
        await asyncio.to_thread(lease.renew)
        await asyncio.to_thread(lease.release)
        assert wire.halfway == before


async def test_a_renewal_whose_acknowledgement_is_lost_is_made_again(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        lease = await enlist(store, clock)
        wire.loses_the_answer_to = b"a rare word"
        assert (await asyncio.to_thread(lease.renew, "a rare word")).alive
        assert wire.lost.is_set()


async def test_a_renewal_on_a_connection_that_went_dead_without_a_word_is_made_on_another(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        lease = await enlist(store, clock, lease=6_000)
        await asyncio.to_thread(lease.renew)
        wire.fall_silent()
        async with asyncio.timeout(60):
            assert (await asyncio.to_thread(lease.renew)).alive
            await store.close()


async def test_what_hung_on_a_connection_that_went_dead_is_tried_on_a_new_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "TIMEOUT", 0.05)
    wire = Wire(postgres_url)
    host = postgres_url.partition("@")[2].partition("/")[0]
    async with (
        wire.opened() as port,
        opened(f"{through(postgres_url, port)}&direct={host}") as store,
    ):
        claim = await start_and_claim(store, clock)
        wire.fall_silent()
        writing = asyncio.create_task(write(store, commit(claim, delta())))
        await asyncio.wait([writing], timeout=0.2)
        wire.cut()
        assert (await writing).first_offset == 3


async def test_a_transaction_that_is_cut_off_has_left_nothing(postgres_url: str) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        claim = await start_and_claim(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute("CREATE TABLE contract_notes (note integer)")
            wire.cut()
            assert await tx.commit(commit(claim, delta())) == Refused("undone")
        async with store.log.transaction() as tx:
            assert await tx.fetch("SELECT to_regclass('contract_notes')::text") == [(None,)]
        await write(store, commit(claim, delta()))


async def test_sessions_that_the_server_ends_are_opened_again(postgres_url: str) -> None:
    url = named(postgres_url)
    async with opened(url) as store:
        claim = await start_and_claim(store, clock)
        for number in range(5):
            await end_backends(url)
            results = await asyncio.gather(
                store.log.commit([commit(claim, delta(), number=number)]),
                store.listing.session(claim.session_id),
                store.log.read(claim.session_id, 0),
            )
            assert known_as(Committed, results[0][0]).first_offset == 3 + number
        assert await end_of(store, claim.session_id) == 7


async def test_commits_under_way_while_the_wire_is_cut_are_each_written_once(
    postgres_url: str,
) -> None:
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        first = await start_and_claim(store, clock)
        claims = [first]
        for _ in range(9):
            claims.append(await start_and_claim(store, clock, held=claims))

        async def carry(place: int) -> None:
            for number in range(20):
                await write(store, commit(claims[place], delta(str(number)), number=number))
                if place == number % 10 == 3:
                    wire.cut()

        await asyncio.gather(*(carry(place) for place in range(10)))
        for claim in claims:
            page = await store.log.read(claim.session_id, 2)
            words = [getattr(entry.record, "text", "") for entry in page.entries]
            assert words == [str(number) for number in range(20)]


async def test_a_work_that_the_database_refuses_fails_alone(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        claim = await start_and_claim(store, clock)
        bad = message(clock, claim.session_id, lane="no \0 here")
        answers = await asyncio.gather(
            store.log.admit([message(clock, claim.session_id)]),
            store.log.admit([bad]),
            store.log.commit([commit(claim, delta())]),
            return_exceptions=True,
        )
        assert isinstance(answers[1], OutlastError)
        assert await end_of(store, claim.session_id) == 4


# Behind a pooler


async def test_all_but_hints_and_signs_works_behind_a_transaction_pooler(
    postgres_url: str,
) -> None:
    pooler = Pooler(read_url(postgres_url).direct)
    async with (
        pooler.opened() as port,
        opened(through(postgres_url, port) + "&direct=none") as store,
    ):
        claim = await start_and_claim(store, clock)
        for number in range(6):
            await write(store, commit(claim, delta(), number=number))
        async with store.log.transaction() as tx:
            await tx.execute("CREATE TABLE contract_notes (note integer)")
            await tx.execute("INSERT INTO contract_notes VALUES (%s)", [7])
            await tx.commit(commit(claim, delta(), number=6))
        async with store.log.transaction() as tx:
            assert await tx.fetch("SELECT note FROM contract_notes") == [(7,)]
        lease = await enlist(store, clock, "w2")
        assert (await asyncio.to_thread(lease.renew)).alive
        await write(store, park(claim, delta(), number=7))
        await admit(store, message(clock, claim.session_id))
        assert (await store.work.claim("w2", 1))[0].number == 8
        assert not await store.work.find_dead()
        assert await end_of(store, claim.session_id) == 11
        assert pooler.transactions > 20


async def test_a_pooler_that_nothing_is_said_of_is_told_from_the_database(
    postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    pooler = Pooler(read_url(postgres_url).direct)
    async with (
        pooler.opened() as port,
        opened(through(postgres_url, port)) as store,
        opened(postgres_url) as other,
    ):
        for worker in ("w1", "w2"):
            await enlist(store, clock, worker)
        store.work.listen(lambda *_: None)
        signs = await ask(postgres_url, "SELECT worker, sign FROM workers ORDER BY worker")
        assert signs == [("w1", None), ("w2", None)]
        assert not await other.work.find_dead()
        await enlist(other, clock, "w3")
    assert [record.message.partition(";")[2] for record in caplog.records] == [
        " name the database itself, or none, in the parameter direct of the store's URL"
    ]


async def test_behind_a_pooler_signs_are_shown_on_the_direct_connection(
    postgres_url: str,
) -> None:
    pooler = Pooler(read_url(postgres_url).direct)
    host = postgres_url.partition("@")[2].partition("/")[0]
    async with (
        pooler.opened() as port,
        opened(f"{through(postgres_url, port)}&direct={host}") as store,
        opened(postgres_url) as other,
    ):
        lease = await enlist(store, clock)
        named = {"worker": "w1", "class": read_url(postgres_url).number}
        [(sign,)] = await other._access.ask("find_living_worker", named)  # what no method tells
        assert sign == 1
        heard = asyncio.Event()
        store.work.listen(lambda *_: heard.set())
        await admit(other, new_session(clock))
        async with asyncio.timeout(60):
            await heard.wait()
        await asyncio.to_thread(lease.release)


# What a URL says


def test_a_url_names_a_schema_of_its_own() -> None:
    assert read_url("postgresql://u@h/d").schema == "outlast"
    assert read_url("postgresql://u@h/d?schema=app_2").schema == "app_2"


@pytest.mark.parametrize("name", ["", "A", 'x"y', "pg_x", "public", "1a", "a b", "a" * 51, "ä"])
def test_a_schema_that_would_need_care_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedStore):
        read_url(f"postgresql://u@h/d?schema={name}")


def test_other_parameters_are_the_drivers() -> None:
    place = read_url("postgresql://u@h/d?schema=x&sslmode=require&connect_timeout=3")
    assert "sslmode=require" in place.pooled
    assert "connect_timeout=3" in place.pooled
    assert "schema" not in place.pooled


@pytest.mark.parametrize(
    ("direct", "found"),
    [
        ("", "host=h port=6432"),
        ("&direct=db", "host=db port=5432"),
        ("&direct=db:5433", "host=db port=5433"),
        ("&direct=postgresql://v:w@db/other", "dbname=other host=db"),
    ],
)
def test_the_direct_connection_is_the_urls_own_or_another(direct: str, found: str) -> None:
    place = read_url(f"postgresql://u:p@h:6432/d?schema=x{direct}")
    settings = psycopg.conninfo.conninfo_to_dict(place.direct)
    wanted = psycopg.conninfo.conninfo_to_dict(found)
    assert wanted.items() <= settings.items()


def test_a_url_without_a_host_is_the_local_socket() -> None:
    place = read_url("postgresql:///d?schema=x")
    assert place.label == "database d at the local socket, schema x"


def test_a_parameter_that_the_driver_does_not_know_is_named() -> None:
    with pytest.raises(UnsupportedStore, match=r"does not know: bogus$"):
        read_url("postgresql://u:p@h/d?bogus=1")


@pytest.mark.parametrize("password", ["a?secret=1", "a?secret", "a/secret?x=1"])
def test_a_password_that_was_not_encoded_is_not_taken_for_a_parameter(password: str) -> None:
    with pytest.raises(UnsupportedStore, match="percent-encoded") as caught:
        read_url(f"postgresql://u:{password}@h/d")
    assert "secret" not in caught.value.message


def test_there_may_be_no_direct_connection() -> None:
    assert read_url("postgresql://u@h/d?direct=none").direct == ""


async def test_the_password_is_never_shown(
    postgres_url: str, caplog: pytest.LogCaptureFixture, unused_tcp_port: int
) -> None:
    caplog.set_level(logging.DEBUG)
    password = urlsplit(postgres_url).password
    assert password, "the server of these tests has one"
    wrong = postgres_url.replace(password, "wrong-secret")
    shown = []
    for url in (
        wrong,
        through(wrong, unused_tcp_port),
        wrong.replace("/postgres?", "/nowhere?"),
        wrong + "&direct=!wrong-secret",
        wrong.replace("@", "%zz@"),
        wrong + "&sslmode=wrong-secret",
    ):
        with pytest.raises(OutlastError) as caught:
            await PostgresStore(url).migrate()
        error: BaseException | None = caught.value
        while error:
            shown += [str(error), repr(error), str(getattr(error, "details", ""))]
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    async with opened(postgres_url) as store:
        shown += [repr(store), repr(store._access.address), str(store._access.address)]
    assert not [text for text in [*shown, caplog.text] if "wrong-secret" in text]
    assert password not in "".join(shown)


# Tools' transactions


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "  rollback",
        "-- note\nEND",
        "/* note */ ABORT",
        "/* /* deep */ */ COMMIT",
        "SAVEPOINT a",
        "BEGIN",
        "PREPARE TRANSACTION 'x'",
        "SET search_path = x",
    ],
)
async def test_a_tool_cannot_end_its_transaction(postgres_url: str, sql: str) -> None:
    async with opened(postgres_url) as store, store.log.transaction() as tx:
        with pytest.raises(InvalidInput):
            await tx.execute(sql)
        assert await tx.fetch("SELECT 1") == [(1,)]


async def test_a_tool_cannot_hide_an_end_behind_another_statement(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        async with store.log.transaction() as tx:
            with pytest.raises(psycopg.Error):
                await tx.execute("CREATE TABLE contract_notes (note integer); COMMIT")
        async with store.log.transaction() as tx:
            assert await tx.fetch("SELECT to_regclass('contract_notes')::text") == [(None,)]


async def test_a_statement_that_runs_too_long_is_stopped(postgres_url: str) -> None:
    async with opened(postgres_url) as store, store.log.transaction(limit=0.2) as tx:
        with pytest.raises(OutlastError, match="was undone"):
            async with asyncio.timeout(60):
                await tx.execute("SELECT pg_sleep(600)")


async def test_a_tool_finds_nothing_that_another_left_on_its_connection(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        for _ in range(2):
            claim = await start_and_claim(store, clock)
            async with store.log.transaction() as tx:
                await tx.execute("CREATE TEMP TABLE scratch (x integer)")
                await tx.execute("SELECT set_config('application_name', 'tool', false)")
                assert isinstance(await tx.commit(park(claim)), Committed)
        async with store.log.transaction() as tx:
            found = await tx.fetch("SELECT current_setting('application_name')")
            assert found == [("outlast",)]


async def test_a_tool_that_hid_an_error_cannot_commit(postgres_url: str) -> None:
    async with opened(postgres_url) as store:
        claim = await start_and_claim(store, clock)
        async with store.log.transaction() as tx:
            with pytest.raises(psycopg.Error):
                await tx.execute("SELECT 1 / 0")
            with pytest.raises(OutlastError, match="undid all"):
                await tx.commit(commit(claim, delta()))
        await write(store, commit(claim, delta()))


async def test_who_waits_for_an_answer_is_told_that_the_connection_was_let_go(
    postgres_url: str,
) -> None:
    guard = ServerGuard("database", load_queries("outlast")["find_server"])
    link = await PipelinedConnection.open(read_url(postgres_url).direct, "database", guard)
    answer = link.send([Statement(b"SELECT 1", [], [], [])])
    link.close()
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailable, match="was closed"):
            await answer


@pytest.mark.parametrize(
    ("rest", "broken"),
    [
        ("UNIQUE (number)", psycopg.errors.UniqueViolation),
        ("FOREIGN KEY (number) REFERENCES own (id)", psycopg.errors.ForeignKeyViolation),
    ],
    ids=["unique", "foreign"],
)
async def test_a_constraint_that_a_tool_breaks_at_the_end_is_told_as_its_own_error(
    postgres_url: str, rest: str, broken: type[Exception]
) -> None:
    async with opened(postgres_url) as store:
        claim = await start_and_claim(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute(
                "CREATE TABLE own (id integer UNIQUE, number integer,"
                f" {rest} DEFERRABLE INITIALLY DEFERRED)"
            )
            await tx.commit(commit(claim, delta()))
        async with store.log.transaction() as tx:
            await tx.execute("INSERT INTO own VALUES (1, 7), (2, 7)")
            with pytest.raises(broken):
                await tx.commit(commit(claim, delta(), number=1))
        async with store.log.transaction() as tx:
            assert await tx.fetch("SELECT * FROM own") == []
            await tx.execute("DROP TABLE own")
            await tx.commit(commit(claim, delta(), number=1))


async def test_a_transaction_that_the_server_stops_at_its_end_is_undone(postgres_url: str) -> None:
    async with opened(postgres_url) as store, rivalling(postgres_url) as rival:
        claim = await start_and_claim(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute("CREATE TABLE contract_notes (note integer)")
            await tx.raw.execute("SET LOCAL lock_timeout = '20ms'")
            await rival.run("SELECT FROM sessions FOR UPDATE")
            assert await tx.commit(commit(claim, delta())) == Refused("undone")
        await rival.rollback()
        await write(store, commit(claim, delta()))


async def test_nobody_knows_of_a_transaction_while_the_server_is_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "TIMEOUT", 0.1)
    wire = Wire(postgres_url)
    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        claim = await start_and_claim(store, clock)
        async with store.log.transaction() as tx:
            await tx.execute("CREATE TABLE contract_notes (note integer)")
            wire.lets_nobody_through = True
            wire.cut()
            with pytest.raises(StoreUnavailable):
                await tx.commit(commit(claim, delta()))
        wire.lets_nobody_through = False
        await write(store, commit(claim, delta()))


async def test_what_is_too_much_for_one_group_goes_out_in_several(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LARGEST_BYTES", 3000)
    async with opened(postgres_url) as store:
        large = [new_session(clock, f"{number}" * 1000) for number in range(7)]
        huge = [new_session(clock, f"{number}" * 5000) for number in range(2)]
        before = dict(store.counts())

        receipts = await asyncio.gather(*(admit(store, one) for one in large + huge))

        assert [r.offset for r in receipts] == [2] * 9
        assert store.counts()["groups"] - before["groups"] == 6  # of 2, 2, 2, 1, 1 and 1


async def test_a_work_that_takes_the_connection_with_it_each_time_takes_no_other(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "TIMEOUT", 1.0)
    async with opened(postgres_url) as store:
        await ask(postgres_url, HANG_UP)
        try:
            many = [new_session(clock) for _ in range(6)]
            many[3] = new_session(clock, agent="deadly")
            told = await asyncio.gather(
                *(admit(store, one) for one in many), return_exceptions=True
            )
        finally:
            await ask(postgres_url, "DROP FUNCTION hang_up CASCADE")

        assert isinstance(told.pop(3), StoreUnavailable)
        assert [type(one) for one in told] == [AdmissionReceipt] * 5
        assert not any(one.duplicate for one in told if isinstance(one, AdmissionReceipt))


async def test_what_the_server_would_never_take_is_refused_alone_and_at_once(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LARGEST_MESSAGE", 20_000)
    async with opened(postgres_url) as store:
        claim = await start_and_claim(store, clock)
        huge = Random(7).randbytes(40_000).hex()
        told = await asyncio.gather(
            store.log.commit([commit(claim, delta(huge))]),
            admit(store, new_session(clock)),
            return_exceptions=True,
        )

        assert type(told[0]) is StoreError
        assert isinstance(told[1], AdmissionReceipt)
        await write(store, commit(claim, delta()))


async def test_works_that_go_one_by_one_do_not_each_wait_for_a_server_that_is_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "TIMEOUT", 0.5)
    wire = Wire(postgres_url)
    sent: list[int] = []
    send = PipelinedConnection.send

    def cutting(link: PipelinedConnection, statements: Sequence[Statement]) -> Answer:
        answer = send(link, statements)
        if b"write(" in statements[0].text:
            sent.append(len(statements))
            wire.cut()
            wire.lets_nobody_through = len(sent) > MOST_LOSSES  # they go one by one by now
        return answer

    async with wire.opened() as port, opened(through(postgres_url, port)) as store:
        await admit(store, new_session(clock))
        monkeypatch.setattr(PipelinedConnection, "send", cutting)
        many = [new_session(clock) for _ in range(8)]
        told = await asyncio.gather(*(admit(store, one) for one in many), return_exceptions=True)

    assert len(sent) == MOST_LOSSES + 1
    assert [type(error) for error in told] == [ServerAway] * len(many)
    assert len(set(map(id, told))) == 1
