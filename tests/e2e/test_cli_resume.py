"""A chat that goes on with a session at which somebody is at work already: its own worker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from outlast import Agent, Outlast, tool
from outlast.cli.terminal.conversation import Conversation
from outlast.store import DeliveryInfo, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing import ScriptedModel, calls, say
from outlast.testing.wrapped_store import WrappedStore


class Slow(WrappedStore):
    """Says what was delivered when the turn is over that waits for somebody to ask."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.asked, self.over = asyncio.Event(), asyncio.Event()

    async def deliveries(self, session_id: str) -> Sequence[DeliveryInfo]:
        self.asked.set()
        await self.over.wait()
        return await super().deliveries(session_id)


async def test_a_turn_that_ends_while_the_chat_looks_is_shown_from_its_start() -> None:
    store = Slow(MemoryStore())

    @tool
    async def look() -> str:
        """Look when the chat does."""
        await store.asked.wait()
        return "seen"

    agent = Agent("a", ScriptedModel([calls(("look", {})), say("Done.")]), tools=[look])
    async with Outlast([agent], store=store) as app:
        session = await app.start(agent, "Go")
        talk = Conversation(app, "", principal="ada", as_json=False)
        resuming = asyncio.create_task(talk.resume(session.id, asked_for=None))
        assert (await session.wait()).output == "Done."
        store.over.set()
        await resuming
        [message] = await app.store.listing.deliveries(session.id)
        assert talk._cursor == message.offset - 1
