"""What PostgreSQL refuses for now is asked for again; what it refuses for good is said."""

from __future__ import annotations

import asyncio
from random import Random

import psycopg
import pytest
from rival import opened, rivalling
from scene import agent, results_of, running, the

from outlast import DedupeKey, Limit, tool
from outlast.errors import InvalidName, StoreError, StoreFull, StoreUnavailable
from outlast.stores.postgres import PostgresStore
from outlast.stores.postgres.error import explain
from outlast.testing.scripted import call, say

CANCEL_WAITING = (
    "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity"
    " WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))"
)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("57014", StoreUnavailable),  # statement_timeout, or somebody cancelled it
        ("55P03", StoreUnavailable),
        ("40P01", StoreUnavailable),
        ("40001", StoreUnavailable),
        ("25P04", StoreUnavailable),
        ("53200", StoreUnavailable),
        ("58030", StoreUnavailable),
        ("53100", StoreFull),
        ("54000", StoreError),  # too large for an index, however much room there is
        ("58P01", StoreError),
        ("23505", StoreError),
        ("22001", StoreError),
    ],
)
def test_only_what_may_pass_is_told_as_passing(state: str, kind: type[StoreError]) -> None:
    assert type(explain(psycopg.errors.lookup(state)(), "store")) is kind


@pytest.mark.parametrize(
    ("error", "code", "advice"),
    [
        (psycopg.errors.InsufficientPrivilege, "42501", "rights"),
        (psycopg.errors.ReadOnlySqlTransaction, "25006", "takes no writes"),
    ],
)
def test_what_is_denied_says_so(error: type[psycopg.Error], code: str, advice: str) -> None:
    told = explain(error(), "store")
    assert type(told) is StoreUnavailable
    assert code in told.message
    assert advice in told.message


@pytest.mark.parametrize("limit", ["statement_timeout%3D500ms", "lock_timeout%3D20ms", ""])
async def test_the_outcome_of_a_tool_waits_for_a_lock_that_is_held_past_all_time_limits(
    postgres_url: str, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[str] = []
    has_begun, is_locked = asyncio.Event(), asyncio.Event()

    @tool()
    async def charge() -> str:
        runs.append("charge")
        has_begun.set()
        await is_locked.wait()
        return "charged"

    async with opened(postgres_url):
        pass  # nothing limits how long it takes to make a schema
    store = PostgresStore(f"{postgres_url}%20-c{limit}" if limit else postgres_url)
    await store.migrate()
    async with (
        rivalling(postgres_url) as rival,
        running(agent([call("charge"), say("done")], tools=[charge]), store=store) as app,
    ):
        session = await app.start("a", "go")
        async with asyncio.timeout(60):
            await has_begun.wait()
            await rival.run("LOCK TABLE log IN SHARE MODE")  # as CREATE INDEX does
            is_locked.set()
            while "the store is away" not in caplog.text:
                await asyncio.sleep(0.01)
                if not limit:
                    await rival.run(CANCEL_WAITING)
            await rival.rollback()
            await session.wait()

        assert await results_of(session) == ["charged"]
        assert await the(session, "tool.interrupted") == []
        assert runs == ["charge"]
        away = next(r for r in caplog.records if r.message == "the store is away")
        assert "look at its time limits" in vars(away)["why"]


def long_name(chance: Random, size: int) -> str:
    """A name that cannot be compressed, of characters with four bytes each."""
    return "".join(chr(chance.randrange(0x20000, 0x2A6DF)) for _ in range(size // 4))


async def test_names_as_long_as_they_may_be_fit_into_every_index(postgres_url: str) -> None:
    chance = Random(7)
    account, tenant, lane, token, dispatch = (long_name(chance, 512) for _ in range(5))

    @tool(
        mutex="{account}",
        limit=Limit(concurrency=1, rate=10),
        idempotency_key=DedupeKey(lambda args: args["account"], "tenant"),
    )
    async def charge(account: str) -> str:
        return "charged"

    agent_a = agent([call("charge", account=account), say("done")], tools=[charge])
    async with running(agent_a, store=postgres_url) as app:
        session = await app.start(
            *("a", "go"),
            tenant=tenant,
            lane=lane,
            continuation_token=token,
            dispatch_id=dispatch,
        )
        async with asyncio.timeout(60):
            assert (await session.wait()).status == "completed"
        assert await the(session, "tool.completed")

        with pytest.raises(InvalidName, match="512 bytes"):
            await app.start("a", "go", tenant=long_name(chance, 516))
