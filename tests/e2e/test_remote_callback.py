"""The callback of a remote agent: only who was given the secret can call."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from msgspec.structs import replace
from remote_scene import HOOKS, Pair, output_of, the, told, two_apps, until

from outlast import Agent, Outlast, Session, Webhook, tool
from outlast.errors import InvalidInput
from outlast.integration.outbox import sign
from outlast.log.reader import Wakeups
from outlast.log.verify import verify
from outlast.store import OutboxCursor
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

BODY = b'{"event": {"type": "turn.completed"}}'


def slow(approval: Any = "never") -> tuple[Agent[Any, Any], asyncio.Event]:
    """Return an agent that answers when it is let, and what lets it."""
    go_on = asyncio.Event()

    @tool(approval=approval)
    async def think() -> str:
        await go_on.wait()
        return "so"

    script: list[ScriptedReply] = [call("think"), say("well")]
    return Agent("teller", ScriptedModel(script), tools=[think]), go_on


async def address_of(pair: Pair, session: Session[Any]) -> tuple[str, str]:
    """Return where the peer calls back, and with what it signs."""
    async for event in session.events():
        if event.type == "subagent.started":
            break
    [child] = await pair.children()
    [cursor] = await pair.peer.store.outbox.cursors(session_id=child)
    return cursor.url, cursor.secret


async def test_only_the_signed_callback_of_the_peer_wakes_the_caller() -> None:
    agent, go_on = slow()
    async with two_apps("hello", asked=agent, poll=600.0) as pair, httpx.AsyncClient() as http:
        session = await pair.near.start("boss", "go")
        url, secret = await address_of(pair, session)
        now = pair.near.clock.now() // 1000
        forged = [
            {},
            sign("another secret, long enough", BODY, now, "msg_1"),
            sign("0123456789abcdef", BODY, now, "msg_1"),
            sign(secret, BODY, now - 3600, "msg_1"),
            sign(secret, b"{}", now, "msg_1"),
        ]
        for headers in forged:
            answer = await http.post(url, content=BODY, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                401,
                "INVALID_SIGNATURE",
            )
        assert not await the(session, "callback.closed")

        go_on.set()
        assert await output_of(session) == "done"
        called, _ = await the(session, "callback.closed")
        assert called.data.get("how", "answered") == "answered"
        assert await pair.peer.store.outbox.dead_letters() == []


async def all_is_told(app: Outlast, session_id: str) -> OutboxCursor:
    """Wait until a session has nothing left to tell, and return to whom it did."""
    with Wakeups(app.store, session_id) as wakeups:
        while True:
            wakeups.clear()
            [cursor] = await app.store.outbox.cursors(session_id=session_id)
            if cursor.due_at is None:
                return cursor
            await wakeups.wait()


async def test_every_news_of_the_peer_wakes_the_caller_and_no_poll_is_needed() -> None:
    async with two_apps("refund", poll=600.0) as pair:
        session = await pair.near.start("boss", "go")
        asked = await until(pair.near, session, "request.opened")
        await all_is_told(pair.peer, (await pair.child()).id)
        await session.answer(asked.data["request_id"], "approve")
        await until(pair.near, session, "turn.completed")
        cursor = await all_is_told(pair.peer, (await pair.child()).id)

        assert await told(session) == ["That is done."]
        assert (cursor.tries, await pair.peer.store.outbox.dead_letters()) == (0, [])
        assert not await verify(pair.near.store, session.id)


async def test_what_is_answered_there_closes_here_without_a_poll() -> None:
    agent, go_on = slow(approval="always")
    async with two_apps("hello", asked=agent, poll=600.0) as pair:
        session = await pair.near.start("boss", "go")
        await until(pair.near, session, "request.opened")
        child = await pair.child()
        [request] = await child.requests()
        await child.answer(request.request_id, "approve")
        closed = await until(pair.near, session, "request.resolved")

        assert closed.data["how"] == "superseded"
        go_on.set()
        assert await output_of(session) == "done"


async def test_a_secret_that_the_caller_brings_suffices() -> None:
    async with two_apps("refund", poll=600.0, hooks=replace(HOOKS, secret=())) as pair:
        session = await pair.near.start("boss", "go")
        asked = await until(pair.near, session, "request.opened")
        await session.answer(asked.data["request_id"], "approve")

        await until(pair.near, session, "turn.completed")


async def test_what_signs_a_callback_is_in_no_log() -> None:
    async with two_apps("refund") as pair:
        session = await pair.near.start("boss", "go")
        url, secret = await address_of(pair, session)
        assert len(secret) > 40

        for app, each in ((pair.near, session), (pair.peer, await pair.child())):
            page = await app.store.log.read(each.id, 0)
            assert not any(secret in repr(entry) for entry in page.entries)
            assert not await verify(app.store, each.id)
        assert secret not in repr(pair.near.agents["boss"].elsewhere)
        token = url.rpartition("/")[2]
        page = await pair.near.store.log.read(session.id, 0)
        assert not any(token in repr(entry) for entry in page.entries)


async def test_a_secret_of_a_webhook_has_a_length() -> None:
    async with two_apps("hello") as pair:
        with pytest.raises(InvalidInput, match="16 bytes"):
            await pair.peer.start(
                "teller", "x", webhook=Webhook("http://127.0.0.1:9/x", secret="short")
            )
