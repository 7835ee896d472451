"""Stopping a caller reaches what it has asked for at a remote agent."""

from __future__ import annotations

from typing import Any

import pytest
from http_scene import FAST
from remote_scene import Pair, boss, peer_app, the, two_apps, until

from outlast import Agent, Outlast, Session
from outlast.errors import Unreachable
from outlast.log.reader import Wakeups
from outlast.stores.sqlite import MemoryStore
from outlast.testing import crash_everywhere
from outlast.testing.scripted import ScriptedModel, call, say


async def asked(pair: Pair) -> Session[Any]:
    """Return a session whose remote agent waits for an approval."""
    session = await pair.near.start("boss", "go")
    await until(pair.near, session, "request.opened")
    return session


async def over(app: Outlast, session: Session[Any]) -> str:
    with Wakeups(app.store, session.id) as wakeups:
        while True:
            wakeups.clear()
            if found := (await session.info()).over:
                return found
            await wakeups.wait()


@pytest.mark.parametrize("stop", ["cancel", "end"])
async def test_who_stops_the_caller_stops_what_it_asked_for(stop: str) -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await asked(pair)
        await getattr(session, stop)("enough")

        child = await pair.child()
        assert await over(pair.peer, child) == "ended"
        assert not await the(child, "tool.completed")
        [cursor] = await pair.near.store.outbox.cursors(session_id=session.id)
        assert (cursor.name, cursor.tries) == ("remote", 0)


async def test_a_caller_that_is_stopped_by_its_own_parent_stops_what_it_asked_for() -> None:
    async with two_apps("refund", poll=0.05) as pair:
        url = pair.near.agents["boss"].elsewhere["teller"].peer.url  # type: ignore[attr-defined]
        script = [call("boss", message="go"), say("done")]
        remote = boss(url, "refund", poll=0.05)
        top: Agent[Any, Any] = Agent("top", ScriptedModel(script), subagents=[remote])
        async with Outlast([top], store="memory://", worker=FAST) as app:
            session = await app.start("top", "go")
            await until(app, session, "request.opened")
            await session.cancel("enough")
            assert await over(pair.peer, await pair.child()) == "ended"


async def test_a_caller_that_is_killed_at_every_commit_of_a_cancel_stops_it_all_the_same() -> None:
    async with peer_app() as (peer, url, token):

        async def ask_and_cancel(app: Outlast) -> str:
            before = {info.session_id for info in await peer.sessions(limit=1000)}
            session: Session[Any] = await app.start("boss", "go")
            await until(app, session, "request.opened")
            await session.cancel("enough")
            [new] = {info.session_id for info in await peer.sessions(limit=1000)} - before
            return await over(peer, await peer.session(new))

        asking = boss(url, "refund", poll=0.05, token=token)
        report = await crash_everywhere(ask_and_cancel, agents=[asking], store=MemoryStore)

        assert len(report.runs) > 10
        report.assert_nothing_lost()
        report.assert_same_output()


async def test_a_peer_that_is_away_is_told_when_it_is_back() -> None:
    async with two_apps("refund", poll=0.05, timeout=0.1) as pair:
        session = await asked(pair)
        pair.wire.lets_nobody_through = True
        pair.wire.cut()
        await session.cancel("enough")
        await until(pair.near, session, "turn.cancelled")
        pair.wire.refused.clear()
        await pair.wire.refused.wait()
        pair.wire.lets_nobody_through = False

        assert await over(pair.peer, await pair.child()) == "ended"


async def test_a_start_of_which_nobody_knows_whether_it_arrived_is_stopped_too() -> None:
    async with two_apps("refund", poll=600.0, timeout=0.01) as pair:
        pair.wire.to = b"POST /v1/sessions"
        pair.wire.instead = [b""]
        session = await pair.near.start("boss", "go")
        await until(pair.near, session, "session.waiting")
        await session.cancel("enough")

        assert await over(pair.peer, await pair.child()) == "ended"


async def test_a_call_that_was_answered_or_never_begun_is_not_cancelled() -> None:
    async with two_apps("hello") as pair:
        session = await pair.near.start("boss", "go")
        await session.wait()
        requests = len(pair.wire.requests)
        await pair.near.erase(session.id)

        assert len(pair.wire.requests) == requests
        assert (await (await pair.child()).info()).over == "completed"


async def test_who_erases_the_caller_ends_what_it_asked_for() -> None:
    async with two_apps("refund", poll=0.05) as pair:
        session = await asked(pair)
        await pair.near.erase(session.id)

        assert await over(pair.peer, await pair.child()) == "ended"
        assert not await pair.near.sessions()


async def test_nothing_is_erased_while_the_peer_is_away_unless_that_is_wanted() -> None:
    async with two_apps("refund", poll=600.0, timeout=0.1) as pair:
        session = await asked(pair)
        pair.wire.lets_nobody_through = True
        pair.wire.cut()
        with pytest.raises(Unreachable, match="teller"):
            await pair.near.erase(session.id)
        assert await pair.near.sessions()

        await pair.near.erase(session.id, cancel_remote=False)
        assert not await pair.near.sessions()
