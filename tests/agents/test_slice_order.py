"""Slices are what the log says, in its order, whatever ends while a commit is under way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from scene import agent, running

from outlast import Context, Session, tool
from outlast.agents.model.client import ModelRequest
from outlast.core import record as r
from outlast.errors import StoreUnavailable
from outlast.log.verify import verify
from outlast.store import Commit, Committed, Refused, Store, Transaction
from outlast.stores.sqlite import MemoryStore, SqliteStore
from outlast.testing.scripted import ScriptedReply, call, calls, say
from outlast.testing.wrapped_store import WrappedStore


class Note(Struct, frozen=True):
    text: str


class Tally(Struct, frozen=True):
    count: int


class Pausing(WrappedStore):
    """Commits a tool's transaction when its sibling has ended."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.is_committing = asyncio.Event()
        self.has_ended = asyncio.Event()

    @asynccontextmanager
    async def transaction(self, limit: float = 5.0) -> AsyncIterator[Transaction]:
        async with self.inner.log.transaction(limit) as transaction:
            commit = transaction.commit

            async def commit_later(wanted: Commit) -> Committed | Refused:
                self.is_committing.set()
                await self.has_ended.wait()
                return await commit(wanted)

            transaction.commit = commit_later  # type: ignore[method-assign, assignment]
            yield transaction


@tool(transactional=True)
async def book(ctx: Context) -> str:
    await ctx.tx.execute("CREATE TABLE IF NOT EXISTS booked (x)")
    ctx.session.mutate(Note).seed(Note("book"))
    return "booked"


async def test_what_a_sibling_of_a_transaction_changes_stands_after_it(tmp_path: Path) -> None:
    store = Pausing(SqliteStore(tmp_path / "outlast.db"))
    seen: list[str] = []

    @tool
    async def plain(ctx: Context) -> str:
        await store.is_committing.wait()
        ctx.session.mutate(Note).seed(Note("plain"))
        asyncio.get_running_loop().call_later(0.01, store.has_ended.set)
        return "done"

    @tool
    async def look(ctx: Context) -> str:
        note = ctx.session.query(Note).latest()
        assert note is not None
        seen.append(note.text)
        return "y" * 70_000  # a snapshot is due

    script = [calls(("book", {}), ("plain", {})), call("look"), call("look"), say("end")]
    async with running(agent(script, tools=[book, plain, look]), store=store) as app:
        session = await app.start("a", "go")
        await session.wait()

        note = await session.query(Note).latest()
        assert note is not None
        assert {note.text, *seen} == {"plain"}
        assert await verify(store, session.id) == []


class Forgetful(WrappedStore):
    """Loses the acknowledgement of a commit, before which another lane has written."""

    talk: Session[Any]
    has_failed = False

    async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
        wanted = commits[0]
        ends = any(isinstance(e, r.ToolCompleted) for e in wanted.records)
        if self.has_failed or wanted.lane != "main" or not ends:
            return await self.inner.log.commit(commits)
        self.has_failed = True
        await (await self.talk.send("B", lane="side")).result()
        gap = (await self.inner.log.read(wanted.session_id, 0)).cursor
        await self.inner.log.commit(commits)
        for number in range(gap):
            await self.talk.send(f"later {number}")
        raise StoreUnavailable("the acknowledgement was lost")


async def test_what_another_lane_wrote_is_seen_though_messages_came_after_a_lost_commit() -> None:
    @tool
    async def count(ctx: Context) -> str:
        return str(ctx.session.mutate(Tally).update(lambda t: Tally(t.count + 1 if t else 1)))

    @tool
    async def note(ctx: Context) -> str:
        ctx.session.mutate(Note).append(Note("x"))
        return "noted"

    def script(request: ModelRequest) -> ScriptedReply:
        first, *later = request.view.messages
        said = first.content[0].text  # type: ignore[union-attr]
        answers = sum(type(message).__name__ == "ModelAnswer" for message in later)
        plan = {"A": [call("note"), call("count")], "B": [call("count")]}[said]
        return plan[answers] if answers < len(plan) else say("done")

    store = Forgetful(MemoryStore())
    async with running(agent(script, tools=[count, note]), store=store) as app:
        store.talk = session = await app.start("a", "A")
        await session.wait()

        assert await session.query(Tally).latest() == Tally(2)
