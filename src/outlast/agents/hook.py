"""Functions of the app that watch what happens, or decide what may.

Observers are told of events after they are in the log, at least once and in order for each
session: the log is their outbox, as it is that of webhooks. Deciders are asked about tool calls
before these are recorded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from outlast.agents.decision import Decider, call_hook
from outlast.agents.runtime.thread import ToolThreads
from outlast.agents.subscription import check_events
from outlast.core.event import Event
from outlast.core.name import check_id
from outlast.core.record import NewOutboxCursor
from outlast.core.setting import names_of
from outlast.errors import InvalidDefinition

OF_HOOK = "hook:"
DECIDABLE = "tool.requested"

Observe = Callable[[Event], Awaitable[None] | None]


class EventObserver(Struct, frozen=True):
    """A function and the types of events that it wants to be told of."""

    name: str
    events: tuple[str, ...]
    function: Observe
    threads: ToolThreads

    async def __call__(self, event: Event) -> None:
        await call_hook(self.function, event, self.threads)


class Hooks:
    """All hooks of an app, by name. `tools` are those that its agents have."""

    def __init__(self, tools: Iterable[str]) -> None:
        self._tools = frozenset(tools)
        self._observers: dict[str, EventObserver] = {}
        self._deciders: dict[str, Decider] = {}

    @property
    def deciders(self) -> tuple[Decider, ...]:
        """Those who decide, in the order in which they are asked."""
        return tuple(self._deciders.values())

    @property
    def cursors(self) -> tuple[NewOutboxCursor, ...]:
        """What every new session needs so that observers are told of it."""
        return tuple(
            NewOutboxCursor(OF_HOOK + name, observer.events)
            for name, observer in self._observers.items()
        )

    def find(self, cursor: str) -> EventObserver | None:
        """Return the observer behind an outbox cursor; None if it is gone from the code."""
        return self._observers.get(cursor.removeprefix(OF_HOOK))

    def observe(self, function: Observe, events: Sequence[str], name: str) -> None:
        name = self._new(name or function_name(function))
        self._observers[name] = EventObserver(name, check_events(events), function, ToolThreads())

    def decide(self, function: Any, events: Sequence[str], tools: Sequence[str], name: str) -> None:
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
        if name in self._observers or name in self._deciders:
            raise InvalidDefinition(f"two hooks are named {name}: give one another name")
        return name


def check_named(events: Sequence[Any]) -> None:
    """Refuse a function where the events that it is told of should be."""
    if any(callable(each) for each in events):
        raise InvalidDefinition(
            'a hook names the events that it is told of: write @app.hook("turn.completed"), not'
            " @app.hook"
        )


def function_name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))
