"""Cancelling remote sessions: what a call has started behind another server ends with the call.

The log drives it: a call that ends without the result of its remote agent records that it gives
the child up, as it does for children of this app. That record has the address. The outbox delivers
it here, at least once and again until the other server has taken it. An erasure takes the log away,
so it waits for the other servers instead.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from outlast.agents.agent import Agent, find_remote
from outlast.agents.subagent import AbandonedChild, AgentHost
from outlast.agents.subscription import StartingSession
from outlast.core import record as r
from outlast.core.event import Event
from outlast.core.index import GIVEN_UP
from outlast.errors import ServerUnavailable, Unreachable
from outlast.integration.outbox.consumer import FunctionReceiver
from outlast.log.reader import EntriesBefore
from outlast.store import OutboxCursor, Store

CURSOR = r.NewOutboxCursor("remote", ("subagent.failed",))


class RemoteCanceller:
    """Ends sessions of remote agents that no call waits for. A `Consumer` of the outbox.

    `public_url` gives where this app is reached from outside.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent[Any, Any]],
        store: Store,
        public_url: Callable[[], str],
    ) -> None:
        self._agents = agents
        self._store = store
        self._public_url = public_url

    @property
    def is_empty(self) -> bool:
        return not any(agent.elsewhere for agent in self._agents.values())

    # From the outbox

    def cursors(self, start: StartingSession) -> tuple[r.NewOutboxCursor, ...]:
        """Return the cursor that every session needs: any tool can ask a remote agent."""
        return (CURSOR,)

    def find(self, cursor: OutboxCursor) -> FunctionReceiver | None:
        if cursor.agent not in self._agents or cursor.name != CURSOR.name:
            return None
        return FunctionReceiver(cursor.name, partial(self._after, cursor.agent))

    async def _after(self, agent: str, event: Event) -> None:
        """End the session of a remote child that was given up."""
        data = event.data
        if not data.get("url") or data["error"]["code"] != GIVEN_UP:
            return
        if remote := find_remote(self._agents, agent, data["agent"]):
            child, message = data["child"], ""
            if not child and (called := await self._called(event)):
                message = called.message  # it is not known whether it was started
            await self._cancel(remote, event.session_id, data["request_id"], child, message)

    async def _called(self, event: Event) -> r.SubagentCalled | None:
        """Return the record of the call, which has what was sent."""
        async for entry in EntriesBefore(self._store.log, event.session_id, event.offset):
            e = entry.record
            if isinstance(e, r.SubagentCalled) and e.request_id == event.data["request_id"]:
                return e
        return None

    # Before an erasure

    async def all_below(self, session_id: str) -> None:
        """End all remote sessions that a session and its descendants have not the result of."""
        if self.is_empty:
            return
        found = [session_id]
        # The list grows while it is gone through: level by level, without recursion.
        for each in found:
            found += await self._all_of(each)

    async def _all_of(self, session_id: str) -> list[str]:
        """End the remote children of a session, and return its children in this app."""
        info = await self._store.listing.session(session_id)
        if info is None or info.agent not in self._agents:
            return []
        backwards = [
            e.record async for e in EntriesBefore(self._store.log, session_id, info.end + 1)
        ]
        # Read from the end, since that is where the log is asked from; folded in its order.
        children = SessionChildren(reversed(backwards))
        for called in children.remote.values():
            if remote := find_remote(self._agents, info.agent, called.agent):
                child, message = called.child, called.message
                await self._cancel(remote, session_id, called.request_id, child, message)
        return children.local

    async def _cancel(
        self, remote: AgentHost, session_id: str, request_id: str, child: str, message: str
    ) -> None:
        started = (await self._store.log.read(session_id, 0, 1)).entries[0].record
        assert isinstance(started, r.SessionStarted)
        abandoned = AbandonedChild(
            session_id=child,
            key=request_id,
            message=message,
            can_ask=started.can_ask,
            depth=1 + (started.parent.depth if started.parent else started.depth),
            public_url=self._public_url(),
        )
        try:
            await remote.cancel(abandoned)
        except ServerUnavailable as error:
            # So that the outbox tries it again.
            raise Unreachable(
                f"the work of {remote.name} for this session could not be ended: {error.message}",
                session=session_id,
            ) from None


class SessionChildren:
    """The children that a session's log names.

    `local` are all in this app; `remote` are those without a result, by request.
    """

    def __init__(self, records: Iterable[r.AnyRecord]) -> None:
        self.local: list[str] = []
        self.remote: dict[str, r.SubagentCalled] = {}
        for record in records:
            self._add(record)

    def _add(self, e: r.AnyRecord) -> None:
        match e:
            case r.SubagentCalled(url=""):
                self.local.append(e.child)
            case r.SubagentCalled():
                self.remote[e.request_id] = e
            case r.SubagentStarted():
                self.remote[e.request_id] = replace(self.remote[e.request_id], child=e.child)
            case r.SubagentCompleted():
                self.remote.pop(e.request_id, None)
            case r.SubagentFailed(error=error) if error.code != GIVEN_UP:
                # A child that was given up stays: it is unknown whether the outbox has ended it.
                self.remote.pop(e.request_id, None)
