"""What failed is tried again by sending it again under the same dispatch id, and saying so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outlast import Agent, Key, Outlast, Session, WorkerSettings
from outlast.agents.model.client import ModelRequest
from outlast.errors import InvalidInput
from outlast.session.inbox import Inbox
from outlast.session.retry import add_retry, newest_try
from outlast.store import DeliveryInfo
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, say

FAST = WorkerSettings(poll=0.05, watch=0.1, grace=0.1, stop_grace=0.1, flush=0.0)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


class Bank:
    """An agent that fails while it is closed, and counts how often it was asked."""

    def __init__(self, kind: str = "recoverable") -> None:
        self._kind = kind
        self.is_closed = True
        self.asked = 0
        self.agent: Agent = Agent("clerk", ScriptedModel(self._follow))

    def _follow(self, request: ModelRequest) -> ScriptedReply:
        self.asked += 1
        if self.is_closed and "fail" in str(request.view.messages):
            raise ScriptedError(self._kind, "closed")
        return say("open")


async def test_a_start_adds_one_retry_per_failed_turn_in_all_processes(url: str) -> None:
    bank = Bank()

    async def start(app: Outlast, *, again: bool = True) -> str:
        session = await app.start(
            bank.agent, "fail", mode="task", dispatch_id="doc-17", retry_failed=again
        )
        return (await session.wait()).status

    async with (
        Outlast([bank.agent], store=url, worker=FAST) as app,
        Outlast([bank.agent], store=url, worker=None) as other,
    ):
        assert await start(app) == "failed"
        assert await start(app, again=False) == "failed"
        assert bank.asked == 1

        assert set(await asyncio.gather(*(start(each) for each in (app, other) * 3))) == {"failed"}
        session = await app.start(bank.agent, "fail", mode="task", dispatch_id="doc-17")
        kinds = [each.kind for each in await app.store.listing.deliveries(session.id)]
        # Each that comes after a retry has failed asks for the next.
        assert bank.asked == len(kinds)
        assert kinds[1:] == ["retry"] * (len(kinds) - 1)

        bank.is_closed = False
        asked = bank.asked
        assert await start(other) == await start(app) == "completed"
        assert await start(app, again=False) == "completed"
        assert bank.asked == asked + 1


async def test_starts_at_once_add_one_retry(url: str) -> None:
    bank = Bank()
    async with Outlast([bank.agent], store=url, worker=FAST) as app:
        await (await app.start(bank.agent, "fail", dispatch_id="d")).wait()
    async with (
        Outlast([bank.agent], store=url, worker=None) as one,
        Outlast([bank.agent], store=url, worker=None) as two,
    ):
        starts = asyncio.gather(
            *(
                app.start(bank.agent, "fail", dispatch_id="d", retry_failed=True)
                for app in (one, two) * 5
            )
        )
        sessions, bulk = await asyncio.gather(starts, one.bulk.retry())
        session = sessions[0]
        kinds = [each.kind for each in await one.store.listing.deliveries(session.id)]
        assert kinds == ["message", "retry"]
        receipts = [each.receipt for each in sessions]
        assert len({each.delivery_id for each in receipts if each}) == 1
        added = [each for each in receipts if each and not each.duplicate]
        assert len(added) + bulk.retried == 1


async def test_the_receipt_leads_to_the_newest_try(url: str) -> None:
    bank = Bank()
    async with Outlast([bank.agent], store=url, worker=FAST) as app:
        key = Key(bank.agent, "customer-17")

        async def send(dispatch_id: str = "m-1", *, again: bool = True) -> str:
            receipt = await app.send(key, "fail", dispatch_id=dispatch_id, retry_failed=again)
            return (await receipt.result()).status

        assert [await send(), await send(again=False)] == ["failed", "failed"]
        bank.is_closed = False
        assert [await send(), await send(), await send(again=False)] == [
            "completed",
            "completed",
            "failed",  # the recorded outcome of the message itself
        ]
        bank.is_closed = True
        assert await send("m-2") == "failed"
        session = (await app.send(key, "fail", dispatch_id="m-1")).session
        bank.is_closed = False

        receipt = await session.send("hello", dispatch_id="m-3")
        await receipt.result()

        # Its turn is no longer the last: it stays as it was recorded.
        assert await send("m-2") == "failed"
        assert [each.kind for each in await app.store.listing.deliveries(session.id)] == [
            "message",
            "retry",
            "message",
            "message",
        ]


async def test_a_message_to_a_session_is_retried_in_its_lane(url: str) -> None:
    bank = Bank()
    async with Outlast([bank.agent], store=url, worker=FAST) as app:
        session = await app.start(bank.agent, "hello")
        failed = await session.send("fail", dispatch_id="m-1", lane="side")
        assert (await failed.result()).status == "failed"
        bank.is_closed = False

        again = await session.send("fail", dispatch_id="m-1", lane="side", retry_failed=True)

        assert (again.lane, again.duplicate) == ("side", False)
        assert (await again.result()).output == "open"


@pytest.mark.parametrize("how", ["ended", "failed"])
async def test_a_session_that_has_ended_is_not_taken_up_again(url: str, how: str) -> None:
    bank = Bank("structural" if how == "failed" else "recoverable")
    async with Outlast([bank.agent], store=url, worker=FAST) as app:

        async def start() -> Session:
            return await app.start(bank.agent, "fail", dispatch_id="d", retry_failed=True)

        session = await start()
        await session.wait()
        if how == "ended":
            await session.end("enough")
            await session.wait()
        before = await session.info()

        again = await start()

        assert (await again.wait()).status == "failed"
        after = await again.info()
        assert (after.session_id, after.over, after.end) == (session.id, how, before.end)


async def test_retry_failed_needs_a_dispatch_id() -> None:
    bank = Bank()
    async with Outlast([bank.agent], store="memory://", worker=None) as app:
        session = await app.start(bank.agent, "hello")
        for attempt in (
            app.start(bank.agent, "hello", retry_failed=True),
            app.send(Key("clerk", "k"), "hello", retry_failed=True),
            session.send("hello", retry_failed=True),
        ):
            with pytest.raises(InvalidInput, match="that failed: give that"):
                await attempt


async def test_a_failed_turn_has_one_retry_however_old_the_look_at_its_lane_is(url: str) -> None:
    bank = Bank()
    async with Outlast([bank.agent], store=url, worker=FAST) as app:
        session = await app.start(bank.agent, "fail")
        await session.wait()
        [lane] = (await session.info()).lanes
        inbox = Inbox(app.store, app.clock)

        receipts = [await add_retry(app.store, inbox, lane, who) for who in ("ada", "bob")]
        await session.wait()
        receipts.append(await add_retry(app.store, inbox, lane, "eve"))

        assert [each.duplicate for each in receipts] == [False, True, True]
        assert len({each.delivery_id for each in receipts}) == 1


def test_the_newest_try_of_a_message_is_its_last_retry_before_another_turn() -> None:
    def delivery(
        name: str, kind: str, turn: str, offset: int, state: str = "settled", lane: str = "main"
    ) -> DeliveryInfo:
        return DeliveryInfo(
            session_id="s",
            lane=lane,
            delivery_id=name,
            kind=kind,
            state=state,
            outcome="",
            turn=turn,
            offset=offset,
            settled_offset=0,
        )

    first = delivery("m1", "message", "t1", 1)
    listed = [
        first,
        delivery("joined", "message", "t1", 2),
        delivery("other", "message", "side/t1", 3, lane="side"),
        delivery("withdrawn", "retry", "", 4),
        delivery("cancel", "cancel", "", 5),
        delivery("r1", "retry", "t2", 6),
        delivery("m2", "message", "t3", 7),
        delivery("r2", "retry", "t4", 8),
        delivery("r3", "retry", "", 9, state="queued"),
    ]

    assert newest_try(first, listed).delivery_id == "r1"
    assert newest_try(listed[1], listed).delivery_id == "r1"
    assert newest_try(listed[6], listed).delivery_id == "r3"
    assert newest_try(listed[2], listed) is listed[2]
