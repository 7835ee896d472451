"""Many turns are retried or cancelled at once, each of them once."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest
from scene import until

from outlast import Agent, Context, ModelOptions, Outlast, Session, WorkerSettings, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.message import UserMessage
from outlast.errors import InvalidInput
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say

FAST = WorkerSettings(poll=0.05, watch=0.1, grace=0.1, stop_grace=0.1, flush=0.0)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'outlast.db'}"
    found: str = request.getfixturevalue("postgres_url")
    return found


@tool
async def ask_boss(ctx: Context) -> str:
    """Ask somebody."""
    return (await ctx.ask("May I?")).text


def clerk(name: str = "clerk") -> Agent:
    def follow(request: ModelRequest) -> ScriptedReply:
        last = request.view.messages[-1]
        if not isinstance(last, UserMessage):
            return say("done")
        if "fail" in str(last):
            raise ScriptedError("recoverable", "closed")
        return call("ask_boss") if "ask" in str(last) else say("hello")

    return Agent(name, ScriptedModel(follow), tools=[ask_boss])


async def outcomes(app: Outlast, session: Session) -> list[tuple[str, str]]:
    found = await app.store.listing.deliveries(session.id)
    return [(each.kind, each.outcome or each.state) for each in found]


async def test_open_turns_and_queued_messages_are_cancelled_once(url: str) -> None:
    async with Outlast([clerk(), clerk("cook")], store=url, worker=FAST) as app:
        asking = [await app.start(name, "ask") for name in ("clerk", "clerk", "cook")]
        idle = await app.start("clerk", "hello")
        for session in (*asking, idle):
            await session.wait()
        await asking[0].send("and this?")

        async with Outlast([clerk()], store=url, worker=None) as desk:
            counted = await desk.bulk.cancel(agent="clerk", dry_run=True)
            found = await asyncio.gather(
                *(desk.bulk.cancel(agent="clerk", waiting="request", reason="r") for _ in range(2))
            )
        for session in asking[:2]:
            await session.wait()

        assert (counted.cancelled, counted.left) == (2, 0)
        assert sum(each.cancelled for each in found) == 2
        assert await outcomes(app, asking[1]) == [("message", "cancelled"), ("cancel", "completed")]
        assert (await asking[1].wait()).status == "cancelled"
        # What was queued behind the turn stays, and is answered.
        assert (await asking[0].wait()).output == "hello"
        assert (await asking[2].info()).status == "waiting"
        assert (await idle.info()).status == "idle"
        assert (await app.bulk.cancel(agent="clerk")).cancelled == 0


async def test_lanes_that_wait_for_their_provider_are_cancelled(url: str) -> None:
    away = ScriptedReply(fails=(ScriptedError("transient", "away"),) * 9)
    once = ModelOptions(max_attempts=1)
    poet = Agent("poet", ScriptedModel([away]), model_options=once)
    async with Outlast([poet, clerk()], store=url, worker=FAST) as app:
        waiting = [await app.start(poet, "hello") for _ in range(3)]
        asking = await app.start("clerk", "ask")
        await asking.wait()
        for session in waiting:
            async for event in session.events():
                if event.type == "session.waiting" and "provider" in event.data["wait"]:
                    break

        found = await app.bulk.cancel(waiting="provider")

        assert (found.cancelled, found.left) == (3, 0)
        for session in waiting:
            assert (await session.wait()).status == "cancelled"
        assert (await asking.info()).status == "waiting"


async def test_messages_that_no_worker_has_taken_are_cancelled_and_no_others(url: str) -> None:
    async with Outlast([clerk()], store=url, worker=None) as desk:
        sessions = [await desk.start("clerk", "hello") for _ in range(3)]
        behind = await sessions[0].send("and this?")

        first = await desk.bulk.cancel(status="queued", reason="a wrong start")
        again = await desk.bulk.cancel(status="queued")

        assert (first.cancelled, first.left) == (3, 0)
        assert (again.cancelled, again.left) == (0, 3)
    async with Outlast([clerk()], store=url, worker=FAST) as app:
        found = [await app.session(session.id) for session in sessions]
        for session in found:
            await session.wait()

        assert (await found[0].result_of(behind.delivery_id)).output == "hello"
        for session in found[1:]:
            kinds = await outcomes(app, session)
            assert kinds == [("message", "cancelled"), ("cancel", "completed")]


async def test_work_is_done_in_pages_that_go_on_where_the_last_one_ended(url: str) -> None:
    async with Outlast([clerk()], store=url, worker=FAST) as app:
        failed = [await app.start("clerk", "fail") for _ in range(3)]
        for session in failed:
            await session.wait()
        await app.close()
        app.settings = None  # no worker takes up what is retried
        await app.open()

        page = await app.bulk.retry(limit=2)
        rest = await app.bulk.retry(limit=2, after=page.after)
        cancelled = await app.bulk.cancel(limit=3)

        assert (page.retried, page.left) == (2, 0)
        assert page.after == (failed[1].id, "main")
        assert (rest.retried, rest.left, rest.after) == (1, 0, None)
        assert (cancelled.cancelled, cancelled.after) == (3, (failed[0].id, "main"))


async def test_failed_turns_that_are_no_longer_their_sessions_last_are_counted_and_left(
    url: str,
) -> None:
    async with Outlast([clerk(), clerk("cook")], store=url, worker=FAST) as app:
        gone_on, retried, twice = [await app.start("clerk", "fail") for _ in range(3)]
        other = await app.start("cook", "fail")
        for session in (gone_on, retried, twice, other):
            await session.wait()
        for session in (gone_on, other):
            assert (await (await session.send("hello")).result()).output == "hello"
        assert (await (await retried.retry()).result()).status == "failed"
        assert (await (await twice.send("fail again")).result()).status == "failed"

        found = await app.bulk.retry(agent="clerk", code="SCRIPTED", dry_run=True)
        assert (found.retried, found.left) == (2, 2)
        everywhere = await app.bulk.retry(dry_run=True, limit=1)
        assert (everywhere.retried, everywhere.left) == (1, 3)
        rest = await app.bulk.retry(dry_run=True, after=everywhere.after)
        assert (rest.retried, rest.left) == (1, 0)
        for choice in ({"code": "OTHER"}, {"since": timedelta(0)}, {"tenant": "other"}):
            none = await app.bulk.retry(dry_run=True, **choice)
            assert (none.retried, none.left) == (0, 0)

        await app.erase(gone_on.id)
        await other.end()
        await until(other, "session.ended")
        assert (await app.bulk.retry(dry_run=True)).left == 1


async def test_a_retry_that_was_cancelled_in_the_queue_can_be_asked_for_again(url: str) -> None:
    async with Outlast([clerk()], store=url, worker=FAST) as app:
        session = await app.start("clerk", "fail")
        await session.wait()
        async with Outlast([clerk()], store=url, worker=None) as desk:
            await app.close()
            assert (await desk.bulk.retry()).retried == 1
            assert (await desk.bulk.cancel()).cancelled == 1
        await app.open()
        await (await app.session(session.id)).wait()
        assert len(await app.sessions(failed=True)) == 1

        assert (await app.bulk.retry()).retried == 1
        await (await app.session(session.id)).wait()

        kinds = await outcomes(app, session)
        assert kinds == [
            ("message", "failed"),
            ("retry", "cancelled"),
            ("cancel", "completed"),
            ("retry", "failed"),
        ]


async def test_what_cannot_be_open_is_refused() -> None:
    async with Outlast([clerk()], store="memory://", worker=None) as app:
        with pytest.raises(InvalidInput, match="status has to be one of running, queued"):
            await app.bulk.cancel(status="idle")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="waiting has to be one of request, "):
            await app.bulk.cancel(waiting="godot")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="a limit is a whole number"):
            await app.bulk.cancel(limit=0)
        with pytest.raises(InvalidInput, match="a session and one of its lanes"):
            await app.bulk.retry(after="ses_1")  # type: ignore[arg-type]
