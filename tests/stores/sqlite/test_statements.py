"""How many statements the SQLite store needs for what happens all the time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec.structs import replace

from outlast.core import record as r
from outlast.core.record import NewOutboxCursor
from outlast.store import Claim, FailureFilter, OpenFilter
from outlast.stores.sqlite import SqliteStore
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.memory import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    commit,
    delta,
    enlist,
    message,
    new_session,
    park,
    question,
    start_and_claim,
    write,
)

HOOK = NewOutboxCursor(name="webhook", url="https://shop.example/hook", events=("turn.completed",))
ONE = ["find_lane", "advance_lane", "append"]


@pytest_asyncio.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "outlast.db", clock)
    await store.migrate()
    yield store
    await store.close()


async def start(store: SqliteStore, clock: ManualClock, count: int) -> list[Claim]:
    claims: list[Claim] = []
    for _ in range(count):
        claims.append(await start_and_claim(store, clock, held=claims, outbox=(HOOK,)))
    return claims


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that are run from now on."""
    names: list[str] = []

    def note(method: str) -> None:
        original: Callable[..., Any] = getattr(Database, method)

        def noting(self: Database, name: str, *args: Any) -> Any:
            if name not in ("listeners", "fill"):  # once in a while, whatever is written
                names.append(name)
            return original(self, name, *args)

        monkeypatch.setattr(Database, method, noting)

    note("run")
    note("all")
    return names


async def test_a_commit_takes_three_statements(
    store: SqliteStore, clock: ManualClock, statements: list[str]
) -> None:
    claim, other = await start(store, clock, 2)
    statements.clear()

    await write(store, commit(claim, delta()))
    await write(store, park(other, delta(), wait=("timer",)))

    assert statements == [*ONE, "find_lane", "advance_and_release_lane", "append"]


async def test_a_commit_that_tells_takes_one_more(
    store: SqliteStore, clock: ManualClock, statements: list[str]
) -> None:
    [claim] = await start(store, clock, 1)
    statements.clear()

    await write(store, commit(claim, delta(), tells=True))

    assert statements == [*ONE, "tell_outbox_cursors"]


async def test_what_is_sent_takes_what_an_arrival_takes_and_its_senders_no_more(
    store: SqliteStore, clock: ManualClock, statements: list[str]
) -> None:
    claims = await start(store, clock, 6)
    letters = [message(clock, claim.session_id) for claim in claims[:2]]
    unnamed = [replace(letter, dispatch_id=letter.delivery_id) for letter in letters]
    sends = [unnamed[:1], unnamed[1:], *([] for _ in claims[2:])]
    wanted = [commit(c, delta(), sends=tuple(s)) for c, s in zip(claims, sends, strict=True)]
    statements.clear()

    await store.log.commit(wanted)

    arrival = ["receipt_by_delivery", "target", "last_row", "append", "receive", "add_delivery"]
    assert statements == [*ONE * len(claims), *arrival, *arrival]


async def test_a_value_that_is_used_again_takes_one_statement(
    store: SqliteStore, clock: ManualClock, statements: list[str]
) -> None:
    one, two = await start(store, clock, 2)
    large = r.ToolCompleted(call_id="t1.s1.c1", attempt=1, value=f'"{"x" * 100_000}"')
    await write(store, commit(one, large))
    statements.clear()

    await write(store, commit(one, large, number=1))
    await write(store, commit(two, large))

    assert statements == 2 * ["find_lane", "advance_lane", "tenant", "use_blob", "append"]


async def sleep_tenants(store: SqliteStore, clock: ManualClock, tenants: range) -> None:
    """Give each tenant a session that waits for a time to come."""
    await store.log.admit([new_session(clock, tenant=f"t{number}") for number in tenants])
    claims = await store.work.claim("w1", len(tenants))
    tomorrow = clock.now() + 86_400_000
    await store.log.commit([park(claim, ready_at=tomorrow) for claim in claims])


async def steps_of_a_claim(store: SqliteStore) -> int:
    """Count what SQLite does for a claim, in the steps of its own machine."""
    assert store._access.writer is not None
    database, steps = store._access.writer._db.raw, count()
    database.set_progress_handler(lambda: next(steps) < 0, 1)
    await store.work.claim("w1", 5)
    database.set_progress_handler(None, 0)
    return next(steps)


async def test_a_claim_costs_the_same_however_many_tenants_sleep(
    store: SqliteStore, clock: ManualClock
) -> None:
    await enlist(store, clock)
    await sleep_tenants(store, clock, range(10))
    few = await steps_of_a_claim(store)
    await sleep_tenants(store, clock, range(10, 200))
    assert await steps_of_a_claim(store) == few


async def test_a_list_of_a_tenant_costs_the_same_whatever_others_have(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    await enlist(store, clock)
    await fail_and_ask(store, clock, "ours", 3)
    await fail_and_ask(store, clock, "others", 10)
    before = await steps_of_lists(store)
    await fail_and_ask(store, clock, "others", 200)

    assert await steps_of_lists(store) == before


async def test_failures_in_a_queue_cost_the_same_whatever_others_have(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    await enlist(store, clock)
    await fail_and_ask(store, clock, "ours", 3, "reports")
    await fail_and_ask(store, clock, "others", 10, "mails")
    before = await steps_of_failures(store)
    await fail_and_ask(store, clock, "others", 200, "mails")
    await fail_and_ask(store, clock, "ours", 200)

    assert await steps_of_failures(store) == before


async def steps_of_failures(store: MemoryStore) -> list[int]:
    """Count what SQLite does for the lists of failures in a queue, in the steps of its machine."""
    sought, steps = FailureFilter(queue="reports"), count()
    store._access._db.raw.set_progress_handler(lambda: next(steps) < 0, 1)
    found = []
    for tenant in (None, "ours"):
        assert len(await store.listing.sessions(tenant=tenant, failed=sought)) == 3
        assert len(await store.listing.lanes(tenant=tenant, failed=sought)) == 3
        found.append(next(steps))
    store._access._db.raw.set_progress_handler(None, 0)
    return [found[0], found[1] - found[0]]


async def fail_and_ask(
    store: MemoryStore, clock: ManualClock, tenant: str, number: int, queue: str = ""
) -> None:
    """Give a tenant sessions: of each two one rests after a failure, and one asks something."""
    starts = [new_session(clock, tenant=tenant, queue=queue) for _ in range(2 * number)]
    await store.log.admit(starts)
    claims = await store.work.claim("w1", 2 * number)
    broken = r.TurnFailed(turn="t1", error=r.Failure("BROKEN", "it did not work"))
    await store.log.commit(
        [park(c, broken, at=clock.now(), status="failed") for c in claims[:number]]
        + [park(c, question(f"req_{c.session_id}"), turn="t1") for c in claims[number:]]
    )


async def steps_of_lists(store: MemoryStore) -> dict[str, int]:
    """Count what SQLite does for each list of a tenant, in the steps of its own machine."""
    lists: dict[str, Callable[..., Awaitable[Sequence[Any]]]] = {
        "sessions": store.listing.sessions,
        "failed sessions": partial(store.listing.sessions, failed=FailureFilter()),
        "lanes": store.listing.lanes,
        "failed lanes": partial(store.listing.lanes, failed=FailureFilter()),
        "open lanes": partial(store.listing.open_lanes, OpenFilter()),
        "requests": store.listing.requests,
    }
    found: dict[str, int] = {}
    steps = count()
    store._access._db.raw.set_progress_handler(lambda: next(steps) < 0, 1)
    for name, read in lists.items():
        before = next(steps)
        assert len(await read(tenant="ours", limit=50)) >= 3, name
        found[name] = next(steps) - before
    store._access._db.raw.set_progress_handler(None, 0)
    return found
