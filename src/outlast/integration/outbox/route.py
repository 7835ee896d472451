"""Who is to be told of what: an app's settings and its agents' subscriptions, joined.

A session keeps names and types of events; where an event goes and what signs it is looked up
here when it is posted, in the code of that day.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from outlast.agents.subscription import DEFAULT_EVENTS, Subscription, check_events
from outlast.core.event import Event
from outlast.core.record import NewOutboxCursor
from outlast.core.setting import settings_of
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.integration.outbox.settings import WebhookSettings
from outlast.net.address import check_url
from outlast.net.signature import secrets_of
from outlast.store import OutboxCursor

WEBHOOK = "webhook"
OF_AGENT = "agent:"


class Subscriber(Protocol):
    """What is asked of an agent; `wraps_output`: its typed answer is `{"value": …}`."""

    @property
    def subscriptions(self) -> Sequence[Subscription]: ...

    @property
    def wraps_output(self) -> bool: ...


Observe = Callable[[Event], Awaitable[None]]


class LocalReceivers(Protocol):
    """Functions of the app itself that want to be told."""

    @property
    def cursors(self) -> Sequence[NewOutboxCursor]: ...

    def find(self, cursor: str) -> Observe | None: ...


class Threads(Protocol):
    """Conversations elsewhere; which one a session is told in, its first token says."""

    @property
    def is_empty(self) -> bool: ...

    def cursors_at(self, token: str) -> Sequence[NewOutboxCursor]: ...

    def find(self, cursor: str) -> Observe | None: ...


class Followers(Protocol):
    """Those who look after what an agent's sessions have going elsewhere."""

    @property
    def is_empty(self) -> bool: ...

    def cursors_of(self, agent: str) -> Sequence[NewOutboxCursor]: ...

    def find(self, cursor: str) -> Observe | None: ...


class WebhookTarget(Struct, frozen=True):
    """Where to post, and what to sign with."""

    url: str
    secrets: tuple[str, ...]

    @property
    def receiver(self) -> str:
        """Whose place it is: scheme, host and port, without the rest."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}".lower()


class OutboxRoutes:
    """Knows every addressee of an app. With nobody in it, `is_empty`, there is nothing to send."""

    def __init__(
        self,
        agents: Mapping[str, Subscriber],
        settings: WebhookSettings | None = None,
        hooks: LocalReceivers | None = None,
        channels: Threads | None = None,
        followers: Followers | None = None,
    ) -> None:
        self.settings = settings_of(WebhookSettings, "webhooks", settings) or WebhookSettings()
        self._posts = settings is not None
        self._secrets = secrets_of(self.settings.secret)
        self._agents = agents
        self._hooks = hooks
        self._channels = channels
        self._followers = followers
        self._known = {
            (agent, OF_AGENT + subscription.name): self._addressee(agent, subscription)
            for agent, subscriber in agents.items()
            for subscription in subscriber.subscriptions
        }

    @property
    def is_empty(self) -> bool:
        others = (self._channels, self._followers)
        is_local = any(each and not each.is_empty for each in others)
        is_hooked = self._hooks and self._hooks.cursors
        return not (self._posts or self._known or is_hooked or is_local)

    def _addressee(self, agent: str, subscription: Subscription) -> WebhookTarget:
        check_url(subscription.url, allow_private=self.settings.allow_private)
        secrets = secrets_of(subscription.secret) or self._secrets
        if not secrets:
            raise InvalidDefinition(
                f"subscription {subscription.name} of agent {agent} has no secret: give it one,"
                " or the app, with Outlast(webhooks=WebhookSettings(secret=…))",
                agent=agent,
            )
        return WebhookTarget(subscription.url, secrets)

    def cursors(
        self,
        agent: str,
        url: str | None = None,
        events: Sequence[str] | None = None,
        *,
        secret: str = "",
        token: str = "",
    ) -> tuple[NewOutboxCursor, ...]:
        """Return where the events of a new session go: to its webhook URL, to subscribers, and
        to the channel that its token is of."""
        found = [
            NewOutboxCursor(name=OF_AGENT + each.name, events=check_events(each.events))
            for each in self._agents[agent].subscriptions
        ]
        found += self._hooks.cursors if self._hooks else ()
        found += self._channels.cursors_at(token) if self._channels else ()
        found += self._followers.cursors_of(agent) if self._followers else ()
        if url is not None:
            told = DEFAULT_EVENTS if events is None else events
            found.insert(0, self._webhook(url, told, secret))
        elif events is not None:
            raise InvalidInput("webhook_events need a webhook_url to go to")
        return tuple(found)

    def _webhook(self, url: str, events: Sequence[str], secret: str) -> NewOutboxCursor:
        if not self._posts:
            raise InvalidInput(
                "this app posts to no webhook_url:"
                " Outlast(webhooks=WebhookSettings(secret=…)) lets it"
            )
        if not (self._secrets or secret):
            raise InvalidInput(
                "a webhook_url needs a secret to be signed with: bring a webhook_secret, or give"
                " the app one, Outlast(webhooks=WebhookSettings(secret=…))"
            )
        check_url(url, allow_private=self.settings.allow_private)
        return NewOutboxCursor(name=WEBHOOK, url=url, events=check_events(events))

    def knows(self, agent: str) -> bool:
        """Whether this app has the agent at all: if not, another app may, on the same store."""
        return agent in self._agents

    def wraps_output(self, agent: str) -> bool:
        return agent in self._agents and self._agents[agent].wraps_output

    def hook(self, cursor: OutboxCursor) -> Observe | None:
        """Return the function of this app that an outbox cursor leads to, if it leads to one."""
        for receivers in (self._hooks, self._channels, self._followers):
            if receivers and (found := receivers.find(cursor.name)):
                return found
        return None

    def find(self, cursor: OutboxCursor) -> WebhookTarget | None:
        """Return whom an outbox cursor leads to today; None if nobody is there any more."""
        if cursor.name == WEBHOOK:
            secrets = secrets_of(cursor.secret) or self._secrets
            return WebhookTarget(cursor.url, secrets) if secrets else None
        return self._known.get((cursor.agent, cursor.name))
