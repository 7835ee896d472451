"""Sessions that have something to tell, and a dispatcher that a test runs by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast import Agent, Outlast, WorkerSettings
from outlast.core.instant import seconds
from outlast.integration.outbox import Subscription, WebhookSettings
from outlast.integration.outbox.consumer import OutboxRoutes
from outlast.integration.outbox.dispatcher import OutboxDispatcher
from outlast.integration.outbox.webhook import WebhookConsumer
from outlast.net.client import GuardedClient
from outlast.store import OutboxCursor, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import ScriptedModel, say

SECRET = "correct horse battery"
HOUR = 3_600_000
DAY = 24 * HOUR
QUICK = WorkerSettings(poll=0.02, watch=60.0, flush=0.0, lease=1e6)
"""The lease outlives a manual clock that is moved by days."""


def poet(*subscriptions: Subscription, **options: Any) -> Agent[Any, Any]:
    """An agent that answers every message."""
    model = ScriptedModel(lambda request: say(f"verse {len(request.view.messages)}"))
    return Agent("poet", model, subscriptions=subscriptions, **options)


class WebhookSetup:
    """A store whose time stands still, and one dispatcher."""

    def __init__(self, agent: Agent[Any, Any] | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.store: Store = MemoryStore(self.clock)
        self.agent = agent or poet()
        self.settings = WebhookSettings(secret=SECRET, allow_private=True, **settings)
        self._client = GuardedClient(allow_private=True, timeout=seconds(self.settings.timeout))

    def reading(self) -> Outlast:
        """An app that starts and reads, and does no work."""
        return Outlast(
            [self.agent], store=self.store, clock=self.clock, worker=None, webhooks=self.settings
        )

    async def talk(self, *messages: str, **options: Any) -> str:
        """Hold a conversation to its end; nobody is told of anything meanwhile."""
        async with self.reading() as app:
            session = await app.start(self.agent, messages[0], **options)
        await self.work(session.id, *messages[1:])
        return session.id

    async def work(self, session_id: str, *messages: str) -> None:
        silent = Outlast([silenced(self.agent)], store=self.store, clock=self.clock, worker=QUICK)
        async with silent as app:
            session = await app.session(session_id)
            await session.wait()
            for message in messages:
                await (await session.send(message)).result()

    def dispatcher(
        self, client: GuardedClient | None = None, **agents: Agent[Any, Any]
    ) -> OutboxDispatcher:
        known, client = agents or {self.agent.name: self.agent}, client or self._client
        webhooks = WebhookConsumer(known, self.settings, self.store, self.clock, client)
        routes = OutboxRoutes(known, [webhooks])
        return OutboxDispatcher(self.store, self.clock, routes, self.settings)

    async def send(self, client: GuardedClient | None = None) -> int:
        """Have all told that is due at this instant."""
        return await self.dispatcher(client).deliver_due()

    async def cursor(self, name: str = "webhook") -> OutboxCursor:
        (found,) = [each for each in await self.store.outbox.cursors() if each.name == name]
        return found

    async def dead(self) -> Sequence[tuple[int, str]]:
        return [(each.offset, each.error) for each in await self.store.outbox.dead_letters()]

    async def until_due(self) -> int:
        """Move the clock to when the next outbox cursor is due, and return how far that was."""
        due_at = await self.store.outbox.next_due_at()
        assert due_at is not None
        passed = due_at - self.clock.now()
        self.clock.advance(passed)
        return passed


def silenced(agent: Agent[Any, Any]) -> Agent[Any, Any]:
    """The same agent without subscriptions: who works with it has nobody to tell."""
    return Agent(agent.name, agent.model, output_type=agent.output_type)
