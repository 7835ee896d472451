"""Calls of agents elsewhere that nobody waits for any more: what they started there is ended.

The log drives it: when such a call ends without a result, its session's outbox cursor tells us, at
least once and again until the other side has taken it. An erasure, which takes the log away,
waits for the other side instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from outlast.agents.agent import Agent
from outlast.agents.subagent import AbandonedCall, RemotelyHosted
from outlast.agents.subscription import StartingSession
from outlast.core import record as r
from outlast.core.event import Event, requested_args
from outlast.core.name import effect_key
from outlast.core.record import AnyRecord, NewOutboxCursor
from outlast.errors import ServerUnavailable, Unreachable
from outlast.integration.outbox.consumer import FunctionReceiver
from outlast.log.reader import EntriesBefore
from outlast.store import OutboxCursor, Store

CURSOR = NewOutboxCursor("recall", ("tool.failed", "tool.interrupted"))
STEP = "step:"


class CallTrail:
    """What the log says of one call."""

    def __init__(self, tool: str, args: str) -> None:
        self.tool = tool
        self.args = args
        self.steps: dict[str, Any] = {}
        self.has_begun = False
        self.has_result = False

    @property
    def may_have_left_something(self) -> bool:
        return self.has_begun and not self.has_result


class RemoteCanceller:
    """Ends elsewhere what the calls of an app's sessions have started there.

    `address` gives where the app is reached from outside.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]],
        store: Store,
        address: Callable[[], str],
    ) -> None:
        self._agents = agents
        self._store = store
        self._address = address

    @property
    def is_empty(self) -> bool:
        return not any(agent.elsewhere for agent in self._agents.values())

    def cursors(self, start: StartingSession) -> tuple[NewOutboxCursor, ...]:
        """Return the cursor that sessions of agents with remote subagents need."""
        return (CURSOR,) if self._agents[start.agent].elsewhere else ()

    def find(self, cursor: OutboxCursor) -> FunctionReceiver | None:
        is_ours = cursor.name == CURSOR.name
        return FunctionReceiver(cursor.name, self.after) if is_ours else None

    async def after(self, event: Event) -> None:
        """End what a call has started that has come to nothing for good."""
        if event.data.get("final", True) and not event.data.get("again_at"):
            records = await self._since_wanted(event.session_id, event.call_id, event.offset)
            await self._recall(event.session_id, records)

    async def all_below(self, session_id: str) -> None:
        """End what a session and all that it started have going elsewhere."""
        if self.is_empty:
            return
        found = [session_id]
        for each in found:
            found += await self._recall(each, await self._all(each))

    async def _recall(self, session_id: str, records: Sequence[AnyRecord]) -> list[str]:
        """End what calls of a session have left elsewhere; return the sessions that it started."""
        info = await self._store.session(session_id)
        agent = self._agents.get(info.agent) if info else None
        if agent is None:
            return []
        reading = RemoteCallLog(agent.elsewhere, records)
        may_ask = reading.depth < agent.max_depth
        for call_id, trail in reading.trails.items():
            if trail.may_have_left_something and (may_ask or trail.steps):
                await self._end(agent.elsewhere[trail.tool], session_id, call_id, trail, reading)
        return reading.children

    async def _since_wanted(self, session_id: str, call_id: str, before: int) -> list[AnyRecord]:
        """Return how a session began, and all of one call since the model asked for it."""
        found: list[AnyRecord] = []
        async for entry in EntriesBefore(self._store, session_id, before):
            e = entry.record
            if getattr(e, "call_id", call_id) == call_id or isinstance(e, r.MessageCompleted):
                found.append(e)
            if isinstance(e, r.MessageCompleted) and call_id in requested_args(e):
                break
        page = await self._store.read(session_id, 0, 1)
        return [page.entries[0].record, *reversed(found)]

    async def _all(self, session_id: str) -> list[AnyRecord]:
        if not (info := await self._store.session(session_id)):
            return []
        found = [e.record async for e in EntriesBefore(self._store, session_id, info.end + 1)]
        return found[::-1]

    async def _end(
        self,
        remote: RemotelyHosted,
        session_id: str,
        call_id: str,
        trail: CallTrail,
        reading: RemoteCallLog,
    ) -> None:
        key, args = effect_key(session_id, call_id), msgspec.json.decode(trail.args)
        call = AbandonedCall(
            key, args, trail.steps, reading.can_ask, reading.depth + 1, self._address()
        )
        try:
            await remote.recall(call)
        except ServerUnavailable as error:
            raise Unreachable(
                f"what {remote.name} does for {call_id} could not be ended: {error.message}",
                session=session_id,
            ) from None


class RemoteCallLog:
    """What a session's log says of its calls of agents elsewhere, and of its children."""

    def __init__(
        self, elsewhere: Mapping[str, RemotelyHosted], records: Iterable[AnyRecord]
    ) -> None:
        self.trails: dict[str, CallTrail] = {}
        self.children: list[str] = []
        self.can_ask = True
        self.depth = 0
        self._elsewhere = elsewhere
        self._args: dict[str, str] = {}
        for record in records:
            self._see(record)

    def _see(self, e: AnyRecord) -> None:
        match e:
            case r.SessionStarted():
                self.can_ask = e.can_ask
                self.depth = e.parent.depth if e.parent else e.depth
            case r.MessageCompleted():
                self._args = requested_args(e)
            case r.ToolRequested() if e.tool in self._elsewhere:
                args = e.changed or self._args.get(e.call_id, "{}")
                self.trails[e.call_id] = CallTrail(e.tool, args)
            case r.SubagentCalled():
                self.children.append(e.child)
            case r.ToolStarted() | r.ToolStepRecorded() | r.ToolCompleted():
                if trail := self.trails.get(e.call_id):
                    follow(trail, e)


def follow(trail: CallTrail, e: r.ToolStarted | r.ToolStepRecorded | r.ToolCompleted) -> None:
    match e:
        case r.ToolStarted():
            trail.has_begun = True
        case r.ToolCompleted():
            trail.has_result = True
        case r.ToolStepRecorded():
            trail.steps[e.name.removeprefix(STEP)] = msgspec.json.decode(e.value)
