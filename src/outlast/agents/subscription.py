"""Subscriptions: the events of an agent's sessions that its author wants posted, and where.

Knows nothing of how they are posted: see `integration/outbox`.
"""

import re
from collections.abc import Sequence
from typing import get_args

from msgspec import Struct

from outlast.core.record import AnyRecord
from outlast.core.setting import names_of
from outlast.errors import InvalidDefinition
from outlast.net.address import check_url
from outlast.net.signature import Secrets, secrets_of

DEFAULT_EVENTS = (
    *("turn.completed", "turn.failed", "turn.cancelled"),
    "request.opened",
    *("session.completed", "session.failed", "session.ended"),
)
"""How turns and sessions ended, and what a human is asked."""

EVENTS = frozenset(
    str(kind.__struct_config__.tag) for kind in get_args(AnyRecord) if not kind.internal
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class StartingSession(Struct, frozen=True):
    """The facts of a new session that decide who is told of its events.

    `token` is its continuation token if it was started at one. `url`, `events` and `secret` are
    those of the webhook that its caller wants, if any.
    """

    agent: str
    token: str = ""
    url: str | None = None
    events: Sequence[str] | None = None
    secret: str = ""


class Subscription(Struct, frozen=True):
    """Posts events of the types in `events`, of all sessions of an agent, to a `url`.

    A session keeps its subscriptions by `name`, with their types of events as they were at its
    start; URL and secret are those of the code that runs when an event is posted. Without a
    `secret` the app's signs.
    """

    url: str
    events: Sequence[str] = DEFAULT_EVENTS
    secret: Secrets = ()
    name: str = "default"

    def __post_init__(self) -> None:
        check_url(self.url, allow_private=True)
        check_events(self.events)
        secrets_of(self.secret)
        if not _NAME.fullmatch(self.name):
            raise InvalidDefinition(
                "a subscription's name has letters, digits, _, . and -, at most 64"
            )

    def __repr__(self) -> str:
        return f"Subscription({self.name!r})"


def check_events(events: Sequence[str]) -> tuple[str, ...]:
    """Return types of events that exist and that readers may see, or say which do not."""
    chosen = (events,) if isinstance(events, str) else names_of("events", events)
    unknown = sorted(set(chosen) - EVENTS)
    if unknown or not chosen:
        raise InvalidDefinition(
            f"there are no events of type {', '.join(unknown)}; docs/reference/events.md has all"
            if unknown
            else "a webhook without events would post nothing: name some",
            events=unknown,
        )
    return chosen
