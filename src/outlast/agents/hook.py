"""Hooks: functions of the app that observe events, or decide about tool calls.

Observers are told of events after they are in the log, at least once and in order for each session;
`Hooks` is a consumer of the outbox (see `integration/outbox/consumer.py`). Deciders are asked about
tool calls before these are recorded.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from outlast.agents.decision import Decider, call_hook
from outlast.agents.runtime.thread import ToolThreads
from outlast.agents.subscription import StartingSession, check_events
from outlast.core.event import Event
from outlast.core.name import check_id
from outlast.core.record import NewOutboxCursor
from outlast.core.setting import names_of
from outlast.errors import InvalidDefinition
from outlast.store import OutboxCursor

OF_HOOK = "hook:"
DECIDABLE = "tool.requested"

Observe = Callable[[Event], Awaitable[None] | None]


class EventObserver(Struct, frozen=True):
    """A function and the types of events that it is told of; `name` is its outbox cursor's."""

    name: str
    events: tuple[str, ...]
    function: Observe
    threads: ToolThreads

    async def deliver(self, event: Event) -> None:
        await call_hook(self.function, event, self.threads)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Event], Awaitable[None]]]:
        """Give the function that tells an event; there is nothing to connect to."""
        yield self.deliver


class Hooks:
    """All hooks of an app, by name. `tools` are the tools that its agents have."""

    def __init__(self, tools: Iterable[str]) -> None:
        self._tools = frozenset(tools)
        self._observers: dict[str, EventObserver] = {}
        self._deciders: dict[str, Decider] = {}

    @property
    def deciders(self) -> tuple[Decider, ...]:
        """The hooks that decide, in the order in which they are asked."""
        return tuple(self._deciders.values())

    @property
    def is_empty(self) -> bool:
        """Whether no hook observes; those that decide need no outbox."""
        return not self._observers

    def cursors(self, _: StartingSession) -> tuple[NewOutboxCursor, ...]:
        """Return the cursors that a new session needs, one for each observer."""
        return tuple(
            NewOutboxCursor(observer.name, observer.events) for observer in self._observers.values()
        )

    def find(self, cursor: OutboxCursor) -> EventObserver | None:
        """Return the observer of an outbox cursor; None if it is gone from the code."""
        return self._observers.get(cursor.name)

    def observe(self, function: Observe, events: Sequence[str], name: str) -> None:
        """Have a function told of events."""
        name = OF_HOOK + self._new(name or function_name(function))
        self._observers[name] = EventObserver(name, check_events(events), function, ToolThreads())

    def decide(self, function: Any, events: Sequence[str], tools: Sequence[str], name: str) -> None:
        """Have a function asked about calls of the named tools, or of all."""
        if tuple(events) != (DECIDABLE,):
            raise InvalidDefinition(
                f'hooks decide about "{DECIDABLE}" only; the others can be observed'
            )
        only = frozenset(names_of("tools", tools))
        if unknown := sorted(only - self._tools):
            raise InvalidDefinition(
                f"no agent of this app has a tool named {', '.join(unknown)}; there are:"
                f" {', '.join(sorted(self._tools)) or 'none'}",
                tools=unknown,
            )
        name = self._new(name or function_name(function))
        self._deciders[name] = Decider(name, function, ToolThreads(), only)

    def _new(self, name: str) -> str:
        check_id("name of a hook", name)
        if OF_HOOK + name in self._observers or name in self._deciders:
            raise InvalidDefinition(f"two hooks are named {name}: give one another name")
        return name


def check_named(events: Sequence[Any]) -> None:
    """Refuse a function in the place of event types: `@app.hook` without parentheses."""
    if any(callable(each) for each in events):
        raise InvalidDefinition(
            'a hook names the events that it is told of: write @app.hook("turn.completed"), not'
            " @app.hook"
        )


def function_name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
