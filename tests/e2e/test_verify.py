"""Every promise of a log, broken in a copy of a store, and found."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import shop
from damage import NOTHING, Copy, Row, change, drop, places, repeat, swap
from http_scene import FAST
from msgspec.structs import replace

from outlast import Agent, Budget, Outlast, Run, Session, WorkflowContext, workflow
from outlast.core import codec
from outlast.core import record as r
from outlast.core.outcome import NOT_RUN
from outlast.errors import UnknownSession
from outlast.log.verify import Finding, verify
from outlast.store import DeliveryInfo
from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import admit, new_session
from outlast.testing.scripted import ScriptedModel, say
from outlast.testing.wrapped_store import WrappedStore


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.migrate()
    try:
        yield store
    finally:
        await store.close()


async def live(app: Outlast) -> tuple[str, str]:
    """Make one session in which nearly everything happens, and one that waits."""
    async with app:
        session: Session[str] = await app.start("support", "two refunds")
        first, second = (await session.wait()).requests
        await session.answer(first.request_id, "approve")
        await session.answer(second.request_id, "deny", text="too much")
        await session.wait()
        await session.send("ask me")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, text="green")
        await session.wait()
        await session.send("hang")
        async for event in session.events():
            if event.type == "tool.started" and event.turn == "t3":
                await session.cancel("enough")
        await session.send("fail please")
        assert (await session.wait()).status == "failed"
        await session.retry()
        await session.wait()
        for number in range(2):
            await (await session.send(f"read book {number}")).result()
        await (await session.send("hello", lane="side")).result()
        waiting: Session[str] = await app.start("support", "refund it")
        await waiting.wait()
        await waiting.send("and another thing")
        return session.id, waiting.id


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    path = tmp_path_factory.mktemp("verify") / "original.db"
    app = Outlast([shop.support], store=f"sqlite:///{path}", worker=shop.FAST)
    return path, *asyncio.run(live(app))


@pytest.fixture
def copy(original: tuple[Path, str, str], tmp_path: Path) -> Copy:
    path, session_id, _ = original
    return Copy(path, tmp_path / "copy.db", session_id)


@pytest.fixture
def waiting(original: tuple[Path, str, str], tmp_path: Path) -> Copy:
    path, _, session_id = original
    return Copy(path, tmp_path / "copy.db", session_id)


async def findings(copy: Copy) -> list[Finding]:
    async with opened(copy.path) as store:
        return await verify(store, copy.session_id)


async def test_a_session_in_which_everything_happened_is_sound(
    original: tuple[Path, str, str],
) -> None:
    path, *sessions = original
    async with opened(path) as store:
        for session_id in sessions:
            assert await verify(store, session_id) == []
        loaded = await store.log.load(sessions[0], "main")
    assert loaded.snapshot
    assert loaded.slices


async def test_a_session_in_memory_is_sound() -> None:
    app = Outlast([shop.support], store="memory://", worker=shop.FAST)
    for session_id in await live(app):
        assert await verify(app.store, session_id) == []


async def test_a_session_that_does_not_exist_is_an_error(copy: Copy) -> None:
    copy.session_id = "ses_none"
    with pytest.raises(UnknownSession):
        await findings(copy)


class Erasing(WrappedStore):
    """Loses the session while it is being looked at."""

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        await self.inner.log.erase(session_id)
        return await self.inner.listing.deliveries(session_id)


async def test_a_session_that_is_erased_while_it_is_verified_has_nothing_wrong(copy: Copy) -> None:
    async with opened(copy.path) as store:
        assert await verify(Erasing(store), copy.session_id) == []
        with pytest.raises(UnknownSession):
            await verify(store, copy.session_id)


# The log


def is_first(e: r.ToolStarted) -> bool:
    return e.call_id == "t1.s1.c1"


def out_of_a_turn(rows: list[Row]) -> None:
    row, number = places(rows, r.TurnStarted)[0]
    row.records[number] = NOTHING


def not_run(e: r.ToolInterrupted) -> r.ToolFailed:
    return r.ToolFailed(call_id=e.call_id, attempt=e.attempt, error=NOT_RUN)


def denied(e: r.ToolCompleted) -> r.ToolDenied:
    return r.ToolDenied(call_id=e.call_id, reason="no")


DAMAGES: list[tuple[str, Callable[[list[Row]], None]]] = [
    ("UNKNOWN_TURN", change(r.TurnStarted, turn="t7")),
    ("UNKNOWN_TURN", change(r.TurnCompleted, turn="t7")),
    ("UNKNOWN_TURN", change(r.StepStarted, turn="t7")),
    ("UNKNOWN_TURN", out_of_a_turn),
    ("UNKNOWN_TURN", change(r.TurnStarted, lambda e: e.retries, retries="t1")),
    ("NOT_FOLDABLE", out_of_a_turn),
    ("NOT_FOLDABLE", change(r.ToolStarted, call_id="t1.s1.c9")),
    ("TURN_LEFT_OPEN", drop(r.TurnCompleted)),
    ("TURN_LEFT_OPEN", drop(r.TurnCancelled)),
    ("UNKNOWN_STEP", change(r.StepStarted, step=4)),
    ("UNKNOWN_STEP", drop(r.StepFailed)),
    ("UNKNOWN_CALL", drop(r.ModelStarted, lambda e: e.call_id == "t4.s1")),
    ("STEP_LEFT_OPEN", drop(r.StepCompleted)),
    ("STEP_LEFT_OPEN", drop(r.StepCompleted, lambda e: e.step == 2)),
    ("NOT_WAITING", drop(r.ToolWaiting)),
    ("NOT_WOKEN", drop(r.ToolWoken)),
    ("UNKNOWN_STEP", change(r.StepCompleted, step=4)),
    ("UNKNOWN_CALL", change(r.ModelStarted, call_id="t9.s1")),
    ("UNKNOWN_CALL", change(r.MessageDelta, call_id="t9.s1")),
    ("UNKNOWN_CALL", change(r.MessageCompleted, call_id="t9.s1")),
    ("UNKNOWN_CALL", change(r.UsageRecorded, call_id="t9.s1")),
    ("UNKNOWN_CALL", change(r.ToolCompleted, call_id="t1.s1.c9")),
    ("UNKNOWN_CALL", drop(r.ToolRequested)),
    ("UNKNOWN_CALL", change(r.TurnCompleted, call_id="t1.s1")),
    ("ATTEMPT_OUT_OF_ORDER", change(r.ModelStarted, attempt=3)),
    ("ATTEMPT_OUT_OF_ORDER", change(r.MessageDelta, attempt=3)),
    ("ATTEMPT_OUT_OF_ORDER", change(r.ToolStarted, attempt=3)),
    ("ATTEMPT_OUT_OF_ORDER", change(r.ToolCompleted, attempt=3)),
    ("NOT_STARTED", drop(r.ToolStarted, is_first)),
    ("WAS_BEGUN", swap(r.ToolInterrupted, not_run)),
    ("WAS_BEGUN", swap(r.ToolCompleted, denied)),
    ("NOT_APPROVED", drop(r.RequestResolved)),
    ("CALL_LEFT_OPEN", drop(r.ToolCompleted)),
    ("REQUEST_LEFT_OPEN", drop(r.RequestResolved)),
    ("UNKNOWN_REQUEST", change(r.RequestResolved, request_id="req_none")),
    ("UNKNOWN_DELIVERY", change(r.TurnStarted, delivery_id="dlv_none")),
    ("UNKNOWN_DELIVERY", change(r.DeliverySettled, delivery_id="dlv_none")),
    ("LEFT_UNSETTLED", drop(r.DeliverySettled, lambda e: e.outcome == "completed")),
    ("LEFT_UNSETTLED", drop(r.DeliverySettled, lambda e: e.outcome == "answered")),
    ("DELTAS_MISSING", change(r.MessageCompleted, lambda e: e.streamed, deltas_from=100_000)),
    ("DELTAS_MISSING", change(r.MessageCompleted, lambda e: e.streamed, streamed=(0, 1))),
    ("WRONG_USAGE", change(r.TurnCompleted, usage=r.UsageSum(1, 2))),
    ("NO_START", drop(r.SessionStarted)),
]


@pytest.mark.parametrize(("code", "edit"), DAMAGES)
async def test_a_record_that_is_wrong_is_found(
    code: str, edit: Callable[[list[Row]], None], copy: Copy
) -> None:
    copy.edit(edit)

    found = await findings(copy)

    assert code in {finding.code for finding in found}
    assert all(finding.offset for finding in found if finding.code == code)


REPEATED: list[tuple[str, Callable[[list[Row]], None]]] = [
    ("SECOND_OUTCOME", repeat(r.ToolCompleted)),
    ("SECOND_OUTCOME", repeat(r.ToolDenied)),
    ("SECOND_OUTCOME", repeat(r.ToolInterrupted)),
    ("STARTED_TWICE", repeat(r.ToolStarted)),
    ("REQUESTED_TWICE", repeat(r.ToolRequested)),
    ("REQUESTED_TWICE", repeat(r.RequestOpened)),
    ("SETTLED_TWICE", repeat(r.DeliverySettled)),
    ("QUEUED_TWICE", repeat(r.DeliveryQueued)),
    ("TURN_LEFT_OPEN", repeat(r.TurnStarted)),
    ("UNKNOWN_REQUEST", repeat(r.RequestResolved)),
]


@pytest.mark.parametrize(("code", "edit"), REPEATED)
async def test_a_record_that_was_written_twice_is_found(
    code: str, edit: Callable[[list[Row]], None], copy: Copy
) -> None:
    copy.edit(edit, renumber=True)

    assert code in {finding.code for finding in await findings(copy)}


async def test_a_missing_commit_is_found_at_its_offset(copy: Copy) -> None:
    gone: list[Row] = []
    copy.edit(lambda rows: gone.append(rows.pop(3)))

    [gap] = [f for f in await findings(copy) if f.code == "OFFSET_OUT_OF_ORDER"]

    assert gap.offset == gone[0].first + len(gone[0].records)


async def test_an_offset_that_is_used_twice_is_found(copy: Copy) -> None:
    copy.edit(lambda rows: rows[2].records.append(NOTHING))

    assert "OFFSET_OUT_OF_ORDER" in {finding.code for finding in await findings(copy)}


async def test_time_that_goes_back_is_found(copy: Copy) -> None:
    copy.sql("UPDATE outlast_log SET at = at - 60000 WHERE key = :sid << 32 | 3")

    [finding] = [f for f in await findings(copy) if f.code == "TIME_WENT_BACK"]

    assert finding.offset == 3


async def test_a_commit_that_cannot_be_read_is_found_at_its_offset(copy: Copy) -> None:
    copy.sql("UPDATE outlast_log SET data = x'0200ff' WHERE key = :sid << 32 | 3")

    [finding] = [f for f in await findings(copy) if f.code == "UNREADABLE"]

    assert finding.offset == 3


async def test_a_missing_blob_is_found(copy: Copy) -> None:
    copy.sql("DELETE FROM outlast_blobs")

    assert "UNREADABLE" in {finding.code for finding in await findings(copy)}


# The indexes

INDEXES: list[tuple[str, str]] = [
    ("DELIVERY_INDEX", "UPDATE outlast_deliveries SET state = 'running'"),
    ("DELIVERY_INDEX", "UPDATE outlast_deliveries SET outcome = 'failed'"),
    ("DELIVERY_INDEX", "UPDATE outlast_deliveries SET turn = 't9'"),
    ("DELIVERY_INDEX", "UPDATE outlast_deliveries SET settled_offset = 1"),
    ("DELIVERY_INDEX", "DELETE FROM outlast_deliveries"),
    ("DELIVERY_INDEX", "UPDATE outlast_deliveries SET id = 'dlv_none' WHERE key = :sid << 32 | 2"),
    ("REQUEST_INDEX", "UPDATE outlast_requests SET state = 'open'"),
    ("REQUEST_INDEX", "UPDATE outlast_requests SET expires_at = 1"),
    ("REQUEST_INDEX", "UPDATE outlast_requests SET data = '{}'"),
    ("REQUEST_INDEX", "DELETE FROM outlast_requests"),
    ("TOKEN_INDEX", "UPDATE outlast_tokens SET living = 0"),
    ("TOKEN_INDEX", "DELETE FROM outlast_tokens"),
    ("TOKEN_INDEX", "INSERT INTO outlast_tokens (tenant, token, sid, living)"
     " VALUES ('default', 'mine', :sid, 1)"),
    ("SESSION_INDEX", "UPDATE outlast_sessions SET over = 'ended' WHERE sid = :sid"),
    ("SESSION_INDEX", "UPDATE outlast_sessions SET agent = 'other' WHERE sid = :sid"),
    ("SESSION_INDEX", "UPDATE outlast_sessions SET created_at = 1 WHERE sid = :sid"),
    ("SESSION_INDEX", "UPDATE outlast_sessions SET parent = 'ses_1' WHERE sid = :sid"),
    ("LANE_INDEX", "UPDATE outlast_lanes SET status = 'running' WHERE sid = :sid"),
    ("LANE_INDEX", "UPDATE outlast_lanes SET turn = 't9' WHERE sid = :sid"),
    ("LANE_INDEX", "UPDATE outlast_lanes SET queued = 3 WHERE sid = :sid"),
    ("LANE_INDEX", "DELETE FROM outlast_lanes WHERE sid = :sid AND lane = 'side'"),
    ("SNAPSHOT", "UPDATE outlast_snapshots SET last_offset = last_offset - 1"),
    ("SNAPSHOT", "UPDATE outlast_snapshots SET data = :other"),
    ("SNAPSHOT", "UPDATE outlast_snapshots SET data = x'00'"),
    ("SNAPSHOT", "UPDATE outlast_snapshots SET data = substr(data, 1, length(data) - 3)"),
    ("SNAPSHOT", "UPDATE outlast_snapshots SET last_offset = 100000"),
    ("SNAPSHOT", "UPDATE outlast_slices SET data = x'00'"),
    ("SLICES", "UPDATE outlast_slices SET data = :slices"),
    ("LANE_INDEX", "UPDATE outlast_log SET lane = 'else' WHERE key = :sid << 32 | 1"),
    ("LOAD", "UPDATE outlast_log SET marks = 0"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "statement"), INDEXES)
async def test_an_index_that_differs_from_the_log_is_found(
    code: str, statement: str, copy: Copy
) -> None:
    packer = codec.Packer()
    other = packer.squeeze(msgspec.msgpack.encode({"session": copy.session_id}))
    slices = packer.squeeze(msgspec.msgpack.encode({"Note": ["{}"]}))
    copy.sql(statement, other=other, slices=slices)

    assert code in {finding.code for finding in await findings(copy)}


CURSORS = [
    "UPDATE outlast_outbox_cursors SET position = 3",
    "UPDATE outlast_outbox_cursors SET url = 'https://elsewhere.example'",
    "UPDATE outlast_outbox_cursors SET events = '[]'",
    "DELETE FROM outlast_outbox_cursors",
]


@pytest.mark.parametrize("statement", CURSORS)
async def test_an_outbox_cursor_that_is_not_as_the_log_says_is_found(
    statement: str, tmp_path: Path
) -> None:
    path = tmp_path / "outbox.db"
    hook = r.NewOutboxCursor(name="webhook", url="https://shop.example", events=("turn.completed",))
    start = new_session(ManualClock(), outbox=(hook,))
    started, queued = start.records
    start = replace(start, records=(replace(started, outbox=(hook,)), queued))
    async with opened(path) as store:
        session_id = (await admit(store, start)).session_id
        assert await verify(store, session_id) == []
        with closing(sqlite3.connect(path)) as db, db:
            assert db.execute(statement).rowcount == 1

        [finding] = await verify(store, session_id)

    assert finding.code == "OUTBOX_INDEX"


async def test_a_lane_that_nobody_would_come_for_is_found(waiting: Copy) -> None:
    waiting.edit(lambda rows: rows[-1].records.append(r.CancelRequested(delivery_id="dlv_new")))
    waiting.sql("UPDATE outlast_lanes SET ready_at = NULL, worker = NULL WHERE sid = :sid")

    assert "STUCK" in {finding.code for finding in await findings(waiting)}


async def test_a_lane_that_was_left_open_at_the_end_of_its_session_is_found(waiting: Copy) -> None:
    def end_elsewhere(rows: list[Row]) -> None:
        last = rows[-1]
        first = last.first + len(last.records)
        rows.append(Row(first, "side", last.at, 4, [r.SessionEnded(reason="enough")]))

    waiting.edit(end_elsewhere)
    waiting.sql("UPDATE outlast_lanes SET ready_at = NULL, worker = NULL WHERE sid = :sid")

    assert "STUCK" in {finding.code for finding in await findings(waiting)}


async def test_who_rests_for_what_others_do_is_not_stuck() -> None:
    """An event, a child and a budget may take any time: nothing is due in such a lane by itself."""

    @workflow
    async def listen(ctx: WorkflowContext) -> None:
        await ctx.wait_event("word")

    @workflow
    async def delegate(ctx: WorkflowContext) -> None:
        await ctx.run(listen)

    idle: Agent[Any, Any] = Agent("idle", ScriptedModel(lambda _: say("done")))
    async with Outlast([idle, listen, delegate], store="memory://", worker=FAST) as app:
        await app.budgets.set(Budget(model_calls=1), tenant="poor")
        await (await app.start(idle, "go", tenant="poor")).wait()
        broke = await app.start(idle, "go", tenant="poor")
        event, child = await app.run(listen), await app.run(delegate)
        resting: list[tuple[str, Run[Any] | Session[Any]]]
        resting = [("event", event), ("event", child), ("budget", broke)]
        for kind, each in resting:
            async with asyncio.timeout(60):
                while not (found := (await each.wait(timeout=0.05)).waiting_for):
                    pass  # its worker is still at it
                while found.kind == "children" and found.session_id == each.id:
                    found = (await each.wait(timeout=0.05)).waiting_for or found

            assert found.kind == kind
            assert await verify(app.store, each.id) == []
