"""Webhooks: the consumer that posts signed events to a session's URL and to subscriptions.

A session keeps the names of its subscriptions and the types of their events. URL and secret of a
subscription are looked up when an event is posted, in the code of that day; those that a caller
brought for one session lie with its cursor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import msgspec

from outlast.agents.subscription import (
    DEFAULT_EVENTS,
    StartingSession,
    Subscription,
    check_events,
)
from outlast.clock import Clock
from outlast.core.event import Event, encode
from outlast.core.instant import seconds
from outlast.core.record import NewOutboxCursor
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.integration.outbox.consumer import Deliver
from outlast.integration.outbox.settings import WebhookSettings
from outlast.log.reader import read_outcome
from outlast.net.address import check_url
from outlast.net.signature import secrets_of, sign
from outlast.store import OutboxCursor, Store

if TYPE_CHECKING:
    from outlast.net.client import GuardedClient

WEBHOOK = "webhook"
"""The name of the cursor for the URL that a session was started with."""

OF_AGENT = "agent:"
"""The names of the cursors for an agent's subscriptions begin with this."""

JSON = {"content-type": "application/json", "user-agent": "outlast-webhook"}


class Subscriber(Protocol):
    """The part of an agent that is asked here; `wraps_output`: its answer is `{"value": …}`."""

    @property
    def subscriptions(self) -> Sequence[Subscription]: ...

    @property
    def wraps_output(self) -> bool: ...


class WebhookConsumer:
    """Posts events. Without `settings` only subscriptions with secrets of their own are served."""

    def __init__(
        self,
        agents: Mapping[str, Subscriber],
        settings: WebhookSettings | None,
        store: Store,
        clock: Clock,
        client: GuardedClient | None = None,
    ) -> None:
        self.settings = settings or WebhookSettings()
        self.store = store
        self.clock = clock
        self._posts_anywhere = settings is not None
        self._secrets = secrets_of(self.settings.secret)
        self._agents = agents
        self._given_client = client
        self._subscribed = {
            (agent, OF_AGENT + subscription.name): self._target(agent, subscription)
            for agent, subscriber in agents.items()
            for subscription in subscriber.subscriptions
        }

    @property
    def is_empty(self) -> bool:
        return not (self._posts_anywhere or self._subscribed)

    def _target(self, agent: str, subscription: Subscription) -> tuple[str, tuple[str, ...]]:
        """Return URL and secrets of a subscription, if events can be signed for it."""
        check_url(subscription.url, allow_private=self.settings.allow_private)
        secrets = secrets_of(subscription.secret) or self._secrets
        if not secrets:
            raise InvalidDefinition(
                f"subscription {subscription.name} of agent {agent} has no secret: give it one,"
                " or the app, with Outlast(webhooks=WebhookSettings(secret=…))",
                agent=agent,
            )
        return subscription.url, secrets

    # The start of a session

    def cursors(self, start: StartingSession) -> list[NewOutboxCursor]:
        agent = self._agents.get(start.agent)  # a workflow has no subscriptions
        subscribed = [
            NewOutboxCursor(name=OF_AGENT + each.name, events=check_events(each.events))
            for each in (agent.subscriptions if agent else ())
        ]
        if start.url is not None:
            return [self._to_url(start, start.url), *subscribed]
        return subscribed

    def _to_url(self, start: StartingSession, url: str) -> NewOutboxCursor:
        if not self._posts_anywhere:
            raise InvalidInput(
                "this app has no webhook settings: give it"
                " Outlast(webhooks=WebhookSettings(secret=…))"
            )
        if not (self._secrets or start.secret):
            raise InvalidInput(
                "a webhook needs a secret to be signed with: bring one, Webhook(url, secret=…), or"
                " give the app one, Outlast(webhooks=WebhookSettings(secret=…))"
            )
        check_url(url, allow_private=self.settings.allow_private)
        events = DEFAULT_EVENTS if start.events is None else start.events
        return NewOutboxCursor(name=WEBHOOK, url=url, events=check_events(events))

    # Delivery

    def find(self, cursor: OutboxCursor) -> WebhookReceiver | None:
        if cursor.name == WEBHOOK:
            secrets = secrets_of(cursor.secret) or self._secrets
            return WebhookReceiver(self, cursor, cursor.url, secrets) if secrets else None
        if target := self._subscribed.get((cursor.agent, cursor.name)):
            return WebhookReceiver(self, cursor, *target)
        return None

    @cached_property
    def client(self) -> GuardedClient:
        """The client for all posts. It is made late: it loads httpx and reads certificates."""
        from outlast.net.client import GuardedClient

        settings = self.settings
        return self._given_client or GuardedClient(
            allow_private=settings.allow_private,
            timeout=seconds(settings.timeout),
            tls=settings.tls,
        )

    def wraps_output(self, agent: str) -> bool:
        return agent in self._agents and self._agents[agent].wraps_output


class WebhookReceiver:
    """Posts the events of one cursor to one URL."""

    def __init__(
        self, webhooks: WebhookConsumer, cursor: OutboxCursor, url: str, secrets: tuple[str, ...]
    ) -> None:
        self._webhooks = webhooks
        self._cursor = cursor
        self._url = url
        self._secrets = secrets

    @property
    def name(self) -> str:
        """Scheme, host and port: all URLs of one host share its limit."""
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.netloc}".lower()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Deliver]:
        """Resolve the host once, and keep the connection for all events of a series."""
        webhooks = self._webhooks
        async with webhooks.client.open(self._url) as connection:

            async def deliver(event: Event) -> None:
                body = await self._body(event)
                # Signed anew for each try: a receiver refuses a timestamp that is some minutes old.
                at, event_id = webhooks.clock.now() // 1000, id_of(event, self._cursor)
                headers = JSON | sign(self._secrets, body, at, event_id)
                (await connection.post(body, headers)).check()

            yield deliver

    async def _body(self, event: Event) -> bytes:
        """Return the event as streams have it, and where it comes from.

        With the end of a turn comes the answer, which another record of the log has.
        """
        cursor = self._cursor
        body: dict[str, Any] = {
            "id": id_of(event, cursor),
            "session_id": cursor.session_id,
            "agent": cursor.agent,
            "tenant": cursor.tenant,
            "event": msgspec.Raw(encode(event)),
        }
        if event.type == "turn.completed":
            wraps = self._webhooks.wraps_output(cursor.agent)
            # So that a receiver need not ask back for what it is mostly there for.
            body["output"] = await output_of(self._webhooks.store, event, wraps_output=wraps)
        return msgspec.json.encode(body)


def id_of(event: Event, cursor: OutboxCursor) -> str:
    """Return the id by which receivers recognise an event that is told twice."""
    return f"{cursor.session_id}-{event.offset}"


async def output_of(store: Store, event: Event, *, wraps_output: bool) -> Any:
    """Return the answer of the turn that an event ends: its text, or its value if it is typed."""
    outcome = await read_outcome(
        store, event.session_id, event.offset + 1, lambda turn: turn == event.turn
    )
    if outcome is None:
        return None
    if outcome.output is None:
        return outcome.text
    value = msgspec.json.decode(outcome.output)
    return value["value"] if wraps_output else value
