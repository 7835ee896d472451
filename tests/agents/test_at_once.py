"""What happens at the same time: updates of one slice, deliveries to one token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scene import results_of, running

from outlast import Agent, Context, Outlast, Token, Tool, tool
from outlast.core.message import ModelAnswer
from outlast.core.record import DeliveryQueued
from outlast.errors import DispatchConflict
from outlast.log.verify import verify
from outlast.stores.sqlite import SqliteStore
from outlast.testing import ScriptedModel, calls, say
from outlast.testing.wrapped_store import WrappedStore


class Budget(msgspec.Struct):
    cents: int


async def test_of_two_calls_that_update_a_slice_at_the_same_time_none_is_lost() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def spend(ctx: Context, cents: int) -> int:
        """Spend."""
        await both.wait()
        left = ctx.session.mutate(Budget).update(
            lambda b: Budget((b.cents if b else 10_000) - cents)
        )
        return left.cents

    script = [calls(("spend", {"cents": 3_000}), ("spend", {"cents": 4_000})), say("Spent.")]
    agent = Agent("spender", ScriptedModel(script), tools=[spend])
    async with Outlast([agent], store="memory://") as app:
        session = await app.start(agent, "Go")
        assert (await session.wait()).output == "Spent."
        assert await session.query(Budget).latest() == Budget(3_000)


def greeter() -> Agent:
    return Agent("greeter", ScriptedModel([say(str(n)) for n in range(20)]))


async def test_a_repeated_delivery_to_a_token_gets_the_first_receipt_in_either_case() -> None:
    async with Outlast([greeter()], store="memory://") as app:
        first = await app.send(Token("thread-1", "greeter"), "Hi", dispatch_id="m-1")
        again = await app.send(Token("thread-1", "greeter"), "Hi", dispatch_id="m-1")
        assert again.delivery_id == first.delivery_id
        assert again.duplicate
        with pytest.raises(DispatchConflict):
            await app.send(Token("thread-1", "greeter"), "Something else", dispatch_id="m-1")


async def test_many_first_deliveries_to_a_token_at_once_make_one_session_and_lose_none() -> None:
    async with Outlast([greeter()], store="memory://") as app:
        sent = [app.send(Token("thread-2", "greeter"), f"Hi {n}") for n in range(10)]
        receipts = await asyncio.gather(*sent)
        assert len({receipt.session_id for receipt in receipts}) == 1
        assert len({receipt.delivery_id for receipt in receipts}) == 10
        results = await asyncio.gather(*(receipt.result() for receipt in receipts))
        assert {result.status for result in results} == {"completed"}


@pytest.fixture(params=["memory://", "sqlite:///lanes.db"])
def store(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    return request.param


async def test_lanes_that_work_at_once_see_all_that_the_others_have_kept(store: Any) -> None:
    @tool
    async def note(ctx: Context, cents: int) -> str:
        """Note."""
        ctx.session.mutate(Budget).append(Budget(cents))
        return "noted"

    def script(request: Any) -> Any:
        notes = sum("noted" in str(message) for message in request.view.messages)
        return calls(("note", {"cents": notes})) if notes < 10 else say("Done.")

    agent = Agent("noter", ScriptedModel(script), tools=[note])
    app = Outlast([agent], store=store)
    async with app:
        session = await app.start(agent, "Go")
        for lane in ("left", "right"):
            await session.send("Go", lane=lane)
        await session.wait()
        assert len(await session.query(Budget).all()) == 30
        await session.end()
        await session.wait()
        assert await verify(app.store, session.id) == []


class Held(WrappedStore):
    """A store that lets the lane `side` change the slices at a moment of the lane `main`."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.begun, self.armed, self.may_change = (asyncio.Event() for _ in range(3))
        self.changed, self._changed_again = asyncio.Event(), asyncio.Event()

    async def commit(self, commits: Any) -> Any:
        results = await super().commit(commits)
        if any(commit.lane == "side" and commit.index.changes_slices for commit in commits):
            (self._changed_again if self.changed.is_set() else self.changed).set()
        return results

    async def side_changes(self) -> None:
        self.armed.clear()
        self.may_change.set()
        await self._changed_again.wait()


class BetweenCommitAndLook(Held):
    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.caught_up = asyncio.Event()

    async def load(self, session_id: Any, lane: Any, after: Any = None) -> Any:
        if lane == "main" and self.armed.is_set():
            await self.side_changes()
        loaded = await super().load(session_id, lane, after)
        if after and any(isinstance(entry.record, DeliveryQueued) for entry in loaded.entries):
            self.caught_up.set()
        return loaded


class BeforeItRests(Held):
    say_more: Callable[[], Awaitable[object]]

    async def commit(self, commits: Any) -> Any:
        if self.armed.is_set() and any(c.lane == "main" and c.release for c in commits):
            await self.side_changes()
            await self.say_more()
        return await super().commit(commits)


async def noticed(ctx: Context) -> str:
    """Look at all notes."""
    return ",".join(str(note.cents) for note in ctx.session.query(Budget).all())


def note_taker(script: Any, store: Any) -> Any:
    @tool
    async def note(ctx: Context, cents: int) -> str:
        """Note."""
        match cents:
            case 0:
                store.begun.set()
                await store.changed.wait()
                store.armed.set()
            case 1:
                await store.begun.wait()
            case 2:
                await store.may_change.wait()
        ctx.session.mutate(Budget).append(Budget(cents))
        return "noted"

    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    class Paced(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            if request.call_id == "t1.s2" and isinstance(store, BetweenCommitAndLook):
                await store.caught_up.wait()
            async for piece in super().stream(request):
                yield piece

    def follow(request: Any) -> Any:
        step = sum(isinstance(message, ModelAnswer) for message in request.view.messages)
        if request.call_id.startswith("side/"):
            return [*(calls(("note", {"cents": n})) for n in (1, 2)), say("Done.")][step]
        return script[min(step, 2)]

    return Agent("noter", Paced(follow), tools=[note, pay, Tool(noticed)])


async def test_what_another_lane_keeps_while_a_lane_looks_at_it_is_seen_once(
    tmp_path: Path,
) -> None:
    store = BetweenCommitAndLook(SqliteStore(tmp_path / "lanes.db"))
    agent = note_taker([calls(("note", {"cents": 0})), calls(("noticed", {})), say("Done.")], store)
    async with running(agent, store=store) as app:
        session = await app.start(agent, "Go")
        await (await session.send("Go", lane="side")).result()
        await session.send("One more")
        await session.wait()
        assert [note.cents for note in await session.query(Budget).all()] == [1, 0, 2]
        assert (await results_of(session))[1] == "1,0,2"
        assert await verify(app.store, session.id) == []


async def test_a_lane_that_cannot_rest_yet_keeps_its_slices_in_the_order_of_the_log(
    tmp_path: Path,
) -> None:
    store = BeforeItRests(SqliteStore(tmp_path / "lanes.db"))
    both = calls(("note", {"cents": 0}), ("pay", {}))
    agent = note_taker([both, calls(("noticed", {})), say("Done.")], store)
    async with running(agent, store=store) as app:
        session = await app.start(agent, "Go")
        store.say_more = partial(session.send, "One more")
        await session.send("Go", lane="side")
        [request] = (await session.wait()).requests
        await session.answer(request.request_id, "approve")
        await session.wait()
        assert [note.cents for note in await session.query(Budget).all()] == [1, 2, 0]
        assert (await results_of(session))[2] == "1,2,0"
        assert await verify(app.store, session.id) == []


async def test_the_end_of_a_session_reaches_a_lane_that_waits_for_a_human(store: Any) -> None:
    @tool(approval="always")
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = Agent("payer", ScriptedModel([calls(("pay", {})), say("Paid.")]), tools=[pay])
    async with Outlast([agent], store=store) as app:
        session = await app.start(agent, "Go", lane="side")
        assert (await session.wait()).status == "waiting"
        queued = await session.send("And then?", lane="side")
        await session.end("enough")
        assert (await queued.result()).status == "refused"
        kinds = [event.type async for event in session.events(follow=False)]
        assert "turn.cancelled" in kinds
        assert await session.requests() == ()
        assert await verify(app.store, session.id) == []
