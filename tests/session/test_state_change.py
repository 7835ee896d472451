"""State that is changed from outside: deliveries to `main`, made by its owner between steps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from scene import agent, log_of, running

from outlast import Context, Outlast, QueueLimits, tool
from outlast.core.message import MAX_MESSAGE
from outlast.core.record import SliceValue, StateChangeRequested
from outlast.core.slice import KeptSlice
from outlast.errors import DispatchConflict, InvalidInput, SessionOver, SessionTooLarge
from outlast.log.verify import verify
from outlast.state import Snapshot, reducer, slice_type, upsert_by
from outlast.testing import call, say


@slice_type("outside-todo", reducer=upsert_by("id"))
@dataclass(frozen=True)
class Todo:
    id: int
    text: str = ""


@slice_type("outside-note")
@dataclass(frozen=True)
class Note:
    text: str


@slice_type("outside-visit", kind="log")
@dataclass(frozen=True)
class Visit:
    page: str


@dataclass(frozen=True)
class Renamed:
    id: int
    text: str


@dataclass(frozen=True)
class Broken:
    pass


@reducer(Todo, Renamed)
def rename(todos: Sequence[Todo], event: Renamed) -> Sequence[Todo]:
    return [Todo(each.id, event.text) if each.id == event.id else each for each in todos]


@reducer(Todo, Broken)
def fail(todos: Sequence[Todo], event: Broken) -> Sequence[Todo]:
    raise ValueError("not today")


async def done(change: Any) -> Any:
    """What a change of state came to."""
    return await (await change).result(timeout=10)


async def test_a_change_from_outside_is_made_by_the_owner_of_main() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert (
            await done(session.mutate(Todo).seed(Todo(1, "tea"), Todo(2)))
        ).status == "completed"
        assert (await done(session.mutate(Todo).dispatch(Todo(2, "cup")))).status == "completed"
        assert (await done(session.mutate().dispatch(Renamed(1, "milk")))).status == "completed"
        await done(session.mutate(Visit).append(Visit("home")))
        await done(session.mutate(Note).append(Note("a")))
        await done(session.mutate(Note).clear())

        assert await session.query(Todo).all() == [Todo(1, "milk"), Todo(2, "cup")]
        assert await session.query(Visit).all() == [Visit("home")]
        assert await session.query(Note).all() == []
        assert (await session.info()).status == "idle"
        assert await verify(app.store, session.id) == []
        events = await log_of(session, internals=True)
        owners = [e for e in events if e.type == "state.changed"]
        assert {event.lane for event in owners} == {"main"}


async def test_a_change_waits_until_the_step_has_ended_and_the_next_one_sees_it() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    @tool
    async def look(ctx: Context) -> int:
        """Look."""
        seen.append(len(ctx.session.query(Note).all()))
        if not begun.is_set():
            begun.set()
            await may_end.wait()
        return seen[-1]

    async with running(agent([call("look"), call("look"), say("ok")], tools=[look])) as app:
        session = await app.start("a", "go")
        await begun.wait()
        receipt = await session.mutate(Note).append(Note("a"))
        assert (await receipt.result(timeout=0.05)).status == "running"
        may_end.set()

        assert (await receipt.result()).status == "completed"
        await session.wait()
        assert seen == [0, 1]


async def test_a_change_is_made_while_the_turn_waits_for_a_human() -> None:
    @tool(approval="always")
    async def pay(ctx: Context) -> str:
        """Pay."""
        return ctx.session.query(Note).all()[0].text

    async with running(agent([call("pay"), say("ok")], tools=[pay])) as app:
        session = await app.start("a", "go")
        [request] = (await session.wait()).requests

        assert (await done(session.mutate(Note).append(Note("a")))).status == "completed"
        assert [each.request_id for each in await session.requests()] == [request.request_id]
        await session.answer(request.request_id, "approve")
        assert (await session.wait()).output == "ok"
        types = [event.type for event in await log_of(session)]
        assert types.count("session.waiting") == 2  # for the human, and for the next message


async def test_the_same_change_twice_is_made_once() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        await session.wait()
        first = await session.mutate(Note).append(Note("a"), dispatch_id="one")
        again = await session.mutate(Note).append(Note("a"), dispatch_id="one")
        await first.result()

        assert (first.duplicate, again.duplicate) == (False, True)
        assert again.delivery_id == first.delivery_id
        assert await session.query(Note).all() == [Note("a")]
        with pytest.raises(DispatchConflict):
            await session.mutate(Note).append(Note("b"), dispatch_id="one")


async def test_a_rollback_from_outside_is_one_record_and_leaves_logs_alone() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        await done(session.mutate(Note).append(Note("a")))
        await done(session.mutate(Visit).append(Visit("home")))
        snapshot = Snapshot.from_json((await session.snapshot()).to_json())
        await done(session.mutate(Note).append(Note("b")))
        await done(session.mutate(Todo).seed(Todo(1)))
        await done(session.mutate(Visit).append(Visit("shop")))

        assert (await done(session.mutate().rollback(snapshot))).status == "completed"
        assert await session.query(Note).all() == [Note("a")]
        assert await session.query(Todo).all() == []
        assert await session.query(Visit).all() == [Visit("home"), Visit("shop")]
        await done(session.mutate().reset())
        assert sorted((await session.snapshot()).slices) == ["outside-visit"]
        events = await log_of(session, internals=True)
        assert [e.type for e in events].count("state.rolled_back") == 2
        assert await verify(app.store, session.id) == []


async def test_a_rollback_is_refused_while_another_lane_has_an_open_turn() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def work(ctx: Context) -> None:
        """Work."""
        if ctx.session.lane == "other":
            ctx.session.mutate(Note).append(Note("from the other lane"))
            begun.set()
            await may_end.wait()

    script = [call("work"), say("ok")]
    async with running(agent(script, tools=[work])) as app:
        session = await app.start("a", "go")
        await session.wait()
        empty = await session.snapshot()
        await session.send("work", lane="other")
        await begun.wait()

        refused = await done(session.mutate().rollback(empty))
        assert (refused.status, refused.error.code) == ("refused", "TURNS_OPEN")
        assert "ask again when that turn has ended" in refused.error.message
        may_end.set()
        await session.wait()
        assert len(await session.query(Note).all()) == 1
        assert (await done(session.mutate().rollback(empty))).status == "completed"
        assert await session.query(Note).all() == []
        assert await verify(app.store, session.id) == []


async def test_a_tool_that_rolls_back_while_another_lane_has_an_open_turn_fails() -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def work(ctx: Context) -> None:
        """Work."""
        if ctx.session.lane == "other":
            begun.set()
            await may_end.wait()
        else:
            ctx.session.mutate().reset()

    async with running(agent([call("work"), say("ok")], tools=[work])) as app:
        session = await app.start("a", "go", lane="other")
        await begun.wait()
        await (await session.send("reset")).result()
        [failed] = [e for e in await log_of(session) if e.type == "tool.failed"]
        may_end.set()
        await session.wait()

        assert failed.data["error"]["code"] == "TURNS_OPEN"


@pytest.mark.parametrize(
    ("event", "code", "said"),
    [
        (Broken(), "REDUCER_FAILED", "a reducer raised ValueError: not today"),
        (Note("x"), "INVALID_INPUT", "outside-todo has no reducer for Note: register one"),
    ],
)
async def test_a_change_that_cannot_be_made_is_refused_with_its_reason(
    event: Any, code: str, said: str
) -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        await session.wait()

        refused = await done(session.mutate(Todo).dispatch(event))
        assert (refused.status, refused.error.code) == ("refused", code)
        assert said in refused.error.message
        assert (await done(session.mutate(Todo).dispatch(Todo(1)))).status == "completed"


async def test_data_that_cannot_be_read_today_refuses_an_event_and_stays() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        snapshot = await session.snapshot()
        text = snapshot.to_json().replace(
            '"slices":{}', '"slices":{"outside-todo":{"values":[{"value":{"n":1},"version":9}]}}'
        )
        await done(session.mutate().rollback(Snapshot.from_json(text)))

        refused = await done(session.mutate(Todo).dispatch(Renamed(1, "x")))
        assert (refused.status, refused.error.code) == ("refused", "SLICE_CHANGED")
        assert '"n":1' in (await session.snapshot()).to_json()


async def test_what_is_wrong_is_said_before_anything_is_sent() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        with pytest.raises(InvalidInput, match="is a log: it can be appended to"):
            await session.mutate(Visit).seed(Visit("x"))
        with pytest.raises(InvalidInput, match="which is no Note"):
            await session.mutate(Note).append("x")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="which `append` would pass by: use `dispatch`"):
            await session.mutate(Todo).append(Todo(1))
        with pytest.raises(InvalidInput, match="rolled back to a Snapshot, not to 'x'"):
            await session.mutate().rollback("x")  # type: ignore[arg-type]
        await session.wait()
        await session.end()
        await session.wait()
        with pytest.raises(SessionOver):
            await session.mutate(Note).append(Note("x"))


async def test_what_was_asked_for_before_the_end_is_made_or_refused() -> None:
    async with Outlast([agent([say("hello")])], store="memory://", worker=None) as app:
        session = await app.start("a", "go")
        receipt = await session.mutate(Note).append(Note("a"))
        assert (await receipt.result(timeout=0)).status == "running"
        page = await app.store.log.read(session.id, 0)
        assert isinstance(page.entries[-1].record, StateChangeRequested)


async def test_an_observer_is_told_how_a_slice_changes_and_nothing_after_it_was_closed() -> None:
    told: list[tuple[Sequence[Note], Sequence[Note]]] = []
    changed = asyncio.Event()

    def note(before: Sequence[Note], after: Sequence[Note]) -> None:
        told.append((before, after))
        changed.set()
        if len(told) == 1:
            raise ValueError("an observer may fail")

    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        await session.wait()
        async with session.observe(Note, note):
            await done(session.mutate(Note).append(Note("a")))
            await asyncio.wait_for(changed.wait(), 10)
            changed.clear()
            await done(session.mutate(Todo).dispatch(Todo(1)))
            await done(session.mutate(Note).append(Note("b")))
            await asyncio.wait_for(changed.wait(), 10)
        await done(session.mutate(Note).append(Note("c")))

        assert told == [([], [Note("a")]), ([Note("a")], [Note("a"), Note("b")])]


async def test_a_change_that_is_larger_than_a_message_may_be_is_refused() -> None:
    async with running(agent([say("hello")])) as app:
        session = await app.start("a", "go")
        large = Note("x" * MAX_MESSAGE)
        snapshot = replace(await session.snapshot(), slices={"outside-note": kept(large)})

        for asked in (session.mutate(Note).append(large), session.mutate().rollback(snapshot)):
            with pytest.raises(InvalidInput, match="bytes, and 33,554,432 is the most"):
                await asked

        await session.wait()
        assert not [e for e in await log_of(session) if e.type.startswith("state.")]


def kept(note: Note) -> KeptSlice:
    return KeptSlice((SliceValue(msgspec.json.encode(note).decode()),))


async def test_a_session_that_is_full_takes_no_change_of_its_state() -> None:
    limits = QueueLimits(session_bytes=20_000)
    async with running(agent([say("hello")]), queue_limits=limits) as app:
        session = await app.start("a", "go")
        assert (await done(session.mutate(Note).append(Note("x" * 5_000)))).status == "completed"

        with pytest.raises(SessionTooLarge):
            await session.mutate(Note).append(Note("x" * 20_000))

        assert [len(note.text) for note in await session.query(Note).all()] == [5_000]
