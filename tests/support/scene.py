"""Apps for tests: the memory store, a worker that loses no time, and ways to look at the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from outlast import Agent, Event, Outlast, Session, WorkerSettings, Workflow
from outlast.agents.model.client import ModelRequest
from outlast.core.message import Message, ToolOutputs, UserMessage, text_of
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.scripted import Script, ScriptedModel, ScriptedReply

DAY = 86_400_000

FAST = WorkerSettings(
    poll=0.02, watch=0.02, grace=0.05, stop_grace=0.05, flush=0.0, rest=0.02, lease=30.0
)
PATIENT = replace(FAST, lease=400 * DAY / 1000)
"""For a manual clock that is moved by days: the lease outlives them."""


@asynccontextmanager
async def running(
    *agents: Agent[Any, Any] | Workflow[Any, Any],
    settings: WorkerSettings | None = FAST,
    **options: Any,
) -> AsyncIterator[Outlast]:
    """An app with these agents on a memory store, at work unless `settings` is None."""
    options.setdefault("store", "memory://")
    async with Outlast(agents, worker=settings, **options) as app:
        yield app


@asynccontextmanager
async def at_standstill(
    *agents: Agent[Any, Any] | Workflow[Any, Any], **options: Any
) -> AsyncIterator[tuple[Outlast, ManualClock]]:
    """An app whose time stands still until the test moves it."""
    clock = ManualClock()
    options |= {"store": MemoryStore(clock), "clock": clock}
    async with running(*agents, settings=PATIENT, **options) as app:
        yield app, clock


def agent(
    script: Sequence[ScriptedReply] | Callable[[ModelRequest], ScriptedReply], **options: Any
) -> Agent:
    """An agent named `a` whose model follows a script."""
    return Agent("a", ScriptedModel(script), **options)


class Watched(ScriptedModel):
    """A scripted model that keeps what it was asked."""

    def __init__(self, script: Script) -> None:
        self.requests: list[ModelRequest] = []
        self.seen: list[list[Message]] = []
        self.told: list[str] = []
        super().__init__(script, on_request=self._note)

    def _note(self, request: ModelRequest) -> None:
        self.requests.append(request)
        self.seen.append(list(request.view.messages))
        last = request.view.messages[-1]
        if isinstance(last, ToolOutputs):
            self.told += [result.text for result in last.results]


async def log_of(session: Session[Any], **options: Any) -> list[Event]:
    """What the log says up to now."""
    return [event async for event in session.events(follow=False, **options)]


async def types_of(session: Session[Any]) -> list[str]:
    return [event.type for event in await log_of(session)]


async def the(session: Session[Any], kind: str) -> list[Event]:
    """All events of a type."""
    return [event for event in await log_of(session) if event.type == kind]


async def until(
    session: Session[Any], kind: str, times: int = 1, *, internals: bool = False
) -> Event:
    """Follow the stream until an event of a type has come that often."""
    async for event in session.events(internals=internals):
        if event.type == kind:
            times -= 1
            if not times:
                return event
    raise AssertionError(f"the stream ended without {kind}")


async def seen(session: Session[Any], kind: str, times: int = 1) -> list[Event]:
    """Look until an event of a type has come that often, though the session itself may rest."""
    async with asyncio.timeout(60):
        while len(found := await the(session, kind)) < times:  # noqa: ASYNC110 - it may rest
            await asyncio.sleep(0.01)
    return found


async def results_of(session: Session[Any]) -> list[str]:
    """What the model was told of each tool call, in order."""
    return [
        result.text
        for message in await session.history()
        if isinstance(message, ToolOutputs)
        for result in message.results
    ]


def words_of(message: Message) -> str:
    """What somebody said in a message."""
    assert isinstance(message, UserMessage), message
    return text_of(message.content)
