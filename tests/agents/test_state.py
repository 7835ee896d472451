"""Typed state in tools: slices with names, reducers, events, and what a tool returns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest
from scene import agent, running, the

from outlast import Agent, Context, InstructionContext, Outlast, ToolResult, tool
from outlast.core.record import StateChanged
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.log.verify import verify
from outlast.state import (
    append,
    reducer,
    replace_latest,
    replace_latest_by,
    slice_type,
    upsert_by,
)
from outlast.testing import ScriptedModel, call, calls, say


@slice_type("todo", reducer=upsert_by("id"))
@dataclass
class Todo:
    id: int
    text: str = ""
    done: bool = False


@dataclass(frozen=True)
class TodoDone:
    id: int


@dataclass(frozen=True)
class AllDone:
    pass


@reducer(Todo, TodoDone)
def finish(todos: Sequence[Todo], event: TodoDone) -> Sequence[Todo]:
    for todo in todos:  # in place, as people do
        todo.done = todo.done or todo.id == event.id
    return todos


@dataclass
class Refused:
    pass


@reducer(Todo, Refused)
def refuse(todos: Sequence[Todo], event: Refused) -> Sequence[Todo]:
    raise ValueError("not today")


@slice_type("visit", kind="log")
class Visit(msgspec.Struct):
    page: str


@slice_type("finding")
class Finding(pydantic.BaseModel):
    file: str
    issues: int


class Mood(pydantic.BaseModel):
    word: str


async def changes(session: Any) -> list[tuple[str, ...]]:
    """The texts that each change of a slice has written."""
    entries = [e.record async for e in records(session)]
    return [record.values for record in entries if isinstance(record, StateChanged)]


async def records(session: Any) -> Any:
    page = await session._store.log.read(session.id, 0)
    for entry in page.entries:
        yield entry


def doing(*steps: Callable[[Context], Any]) -> list[Any]:
    """An agent that takes these steps, one call each, and the tools for it."""

    @tool
    async def do(ctx: Context, n: int) -> Any:
        """Do."""
        return steps[n](ctx)

    script = [call("do", n=n) for n in range(len(steps))]
    return [agent([*script, say("done")], tools=[do])]


@pytest.mark.parametrize(
    ("reduce", "expected"),
    [
        (append, [(1, "a"), (2, "b"), (1, "c")]),
        (upsert_by(lambda todo: todo.id), [(1, "c"), (2, "b")]),
        (replace_latest, [(1, "a"), (1, "c")]),
        (replace_latest_by(lambda todo: todo.id), [(2, "b"), (1, "c")]),
    ],
)
def test_reducers_say_what_becomes_of_one_more_value(reduce: Any, expected: Any) -> None:
    before = [Todo(1, "a"), Todo(2, "b")]

    assert [(t.id, t.text) for t in reduce(before, Todo(1, "c"))] == expected
    assert [t.text for t in before] == ["a", "b"]


async def test_a_value_is_dispatched_by_the_reducer_of_its_slice() -> None:
    steps = doing(
        lambda ctx: ctx.session.mutate(Todo).seed(Todo(1, "tea"), Todo(2, "cup")),
        lambda ctx: ctx.session.mutate(Todo).dispatch(Todo(1, "green tea")),
        lambda ctx: ctx.session.mutate(Todo).dispatch(TodoDone(2)),
    )
    async with running(*steps) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await session.query(Todo).all() == [Todo(1, "green tea"), Todo(2, "cup", done=True)]
        assert await session.query(Todo).latest() == Todo(2, "cup", done=True)
        assert await session.query(Todo).where(lambda todo: not todo.done) == [Todo(1, "green tea")]
        assert [len(values) for values in await changes(session)] == [2, 1, 1]  # what has changed


async def test_an_event_for_the_session_changes_every_slice_that_has_a_reducer_for_it() -> None:
    @slice_type("count")
    @dataclass
    class Count:
        n: int

    @reducer(Count, AllDone)
    def count(counts: Sequence[Count], event: AllDone) -> Sequence[Count]:
        return [Count(counts[-1].n + 1 if counts else 1)]

    @reducer(Todo, AllDone)
    def finish_all(todos: Sequence[Todo], event: AllDone) -> Sequence[Todo]:
        return [Todo(each.id, each.text, done=True) for each in todos]

    steps = doing(
        lambda ctx: ctx.session.mutate(Todo).seed(Todo(1), Todo(2)),
        lambda ctx: ctx.session.mutate().dispatch(AllDone()),
    )
    async with running(*steps) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert all(todo.done for todo in await session.query(Todo).all())
        assert await session.query(Count).all() == [Count(1)]


async def test_a_reducer_can_be_registered_for_one_call() -> None:
    def rename(todos: Sequence[Todo], event: Mood) -> Sequence[Todo]:
        return [Todo(each.id, event.word) for each in todos]

    def change(ctx: Context) -> None:
        ctx.session.mutate(Todo).seed(Todo(1))
        ctx.session.mutate(Todo).register(Mood, rename)
        ctx.session.mutate(Todo).dispatch(Mood(word="bright"))

    later = lambda ctx: ctx.session.mutate(Todo).dispatch(Mood(word="dull"))  # noqa: E731
    async with running(*doing(change, later)) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await session.query(Todo).all() == [Todo(1, "bright")]
        [failed] = await the(session, "tool.failed")
        assert "todo has no reducer for Mood: register one" in failed.data["error"]["message"]


async def test_of_calls_that_dispatch_at_the_same_time_none_is_lost() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def add(ctx: Context, n: int) -> int:
        """Add."""
        await both.wait()
        ctx.session.mutate(Todo).dispatch(Todo(n))
        ctx.session.mutate(Todo).clear(lambda todo: todo.id == 100 + n)
        return len(ctx.session.query(Todo).all())

    @tool
    async def begin(ctx: Context) -> None:
        """Begin."""
        ctx.session.mutate(Todo).seed(Todo(101), Todo(102), Todo(103))

    script = [call("begin"), calls(("add", {"n": 1}), ("add", {"n": 2})), say("done")]
    async with running(agent(script, tools=[add, begin])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert sorted(t.id for t in await session.query(Todo).all()) == [1, 2, 103]
        assert await verify(app.store, session.id) == []


async def test_what_a_tool_returns_with_a_message_is_dispatched_with_its_outcome() -> None:
    @tool
    async def analyse(file: str) -> ToolResult[Finding]:
        """Analyse."""
        return ToolResult("three issues", Finding(file=file, issues=3))

    @tool
    async def tick() -> ToolResult[TodoDone]:
        """Tick."""
        return ToolResult("ticked", TodoDone(1))

    @tool
    async def feel() -> ToolResult[Mood]:
        """Feel."""
        return ToolResult("fine", Mood(word="calm"))

    @tool
    async def begin(ctx: Context) -> None:
        """Begin."""
        ctx.session.mutate(Todo).seed(Todo(1))

    script = [call("begin"), call("analyse", file="a.py"), call("tick"), call("feel"), say("ok")]
    async with running(agent(script, tools=[analyse, tick, feel, begin])) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await session.query(Finding).all() == [Finding(file="a.py", issues=3)]
        assert await session.query(Todo).all() == [Todo(1, done=True)]
        assert await session.query(Mood).all() == []  # neither a slice nor an event


async def test_a_returned_value_that_its_reducer_refuses_leaves_the_outcome_unknown() -> None:
    @tool
    async def act() -> ToolResult[Refused]:
        """Act."""
        return ToolResult("acted", Refused())

    async with running(agent([call("act"), say("hm")], tools=[act])) as app:
        session = await app.start("a", "go")
        await session.wait()

        [cut] = await the(session, "tool.interrupted")
        assert "ValueError: not today" in cut.data["why"]


async def test_a_log_is_only_appended_to_and_no_reset_takes_it_back() -> None:
    refused: list[str] = []

    def cannot(change: Callable[[], object]) -> None:
        with pytest.raises(InvalidInput) as error:
            change()
        refused.append(error.value.message)

    def change(ctx: Context) -> None:
        log = ctx.session.mutate(Visit)
        log.append(Visit("home"))
        log.dispatch(Visit("shop"))
        cannot(lambda: log.seed(Visit("x")))
        cannot(log.clear)
        cannot(lambda: log.update(lambda visit: Visit("x")))
        ctx.session.mutate(Todo).seed(Todo(1))

    async with running(*doing(change, lambda ctx: ctx.session.mutate().reset())) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await session.query(Visit).all() == [Visit("home"), Visit("shop")]
        assert await session.query(Todo).all() == []
        assert refused == ["visit is a log: it can be appended to, and nothing else"] * 3


async def test_instructions_read_state_and_cannot_change_it() -> None:
    def look(ctx: InstructionContext) -> str:
        with pytest.raises(InvalidInput, match="instructions cannot change"):
            ctx.session.mutate(Todo).seed(Todo(1))
        return f"{len(ctx.session.query(Todo).all())} to do"

    model = ScriptedModel([say("ok")])
    async with Outlast([Agent("a", model, instructions=look)], store="memory://") as app:
        session = await app.start("a", "go")
        assert (await session.wait()).output == "ok"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.append(Todo(1)), "todo has a reducer of its own, which `append` would pass"),
        (lambda m: m.seed(Mood(word="x")), "seeded todo with Mood(word='x'), which is no Todo"),
        (lambda m: m.update(lambda todo: None), "changed todo to None, which is no Todo"),
        (lambda m: m.dispatch(Mood(word="x")), "todo has no reducer for Mood: register one"),
    ],
)
async def test_a_change_that_cannot_be_says_what_is_wrong(change: Any, said: str) -> None:
    async with running(*doing(lambda ctx: change(ctx.session.mutate(Todo)))) as app:
        session = await app.start("a", "go")
        await session.wait()

        [failed] = await the(session, "tool.failed")
        assert said in failed.data["error"]["message"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "outlast:x"}, "are Outlast's own"),
        ({"name": "x", "kind": "heap"}, 'of kind "state" or "log"'),
        ({"name": "x", "kind": "log", "reducer": replace_latest}, "only appended to"),
        ({"name": "x", "version": 0}, "is 1 or more"),
        ({"name": "x", "version": 2, "migrate": {2: dict}}, "versions before 2, not from 2"),
    ],
)
def test_a_slice_type_that_cannot_be_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDefinition, match=said):
        slice_type(settings.pop("name"), **settings)


def test_two_classes_cannot_have_one_slice() -> None:
    other = type("Other", (), {})
    other.__qualname__ = "Other"

    with pytest.raises(InvalidDefinition, match=r"todo is of \S*test_state\.Todo already: give"):
        slice_type("todo")(other)


@dataclass
class Draft:
    lines: list[str] = field(default_factory=list)


async def test_a_class_that_says_nothing_is_a_slice_with_its_own_name() -> None:
    steps = doing(
        lambda ctx: ctx.session.mutate(Draft).append(Draft(["a"])),
        lambda ctx: ctx.session.mutate(Draft).dispatch(Draft(["b"])),
    )
    async with running(*steps) as app:
        session = await app.start("a", "go")
        await session.wait()

        assert await session.query(Draft).all() == [Draft(["a"]), Draft(["b"])]
