"""Another agent, as a tool asks it: it waits durably for a session of its own.

If that agent is remote, the session is behind another server, and the engine looks after it while
the tool waits: see `RunTools.contact`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from outlast.agents.runtime.durable_wait import WaitTracker, digest
from outlast.agents.runtime.environment import AgentRef
from outlast.core.message import Content, Said, Text, content_of
from outlast.core.name import check_id, quoted
from outlast.core.record import Failure
from outlast.core.result import NewChild, NewWait
from outlast.errors import InvalidMessage, SubagentError, ToolError


class Subagent:
    """Another agent, made by `ctx.agent`."""

    def __init__(self, waiting: WaitTracker, agent: AgentRef, max_depth: int) -> None:
        self._waiting = waiting
        self._agent = agent
        self._max_depth = max_depth

    async def ask(self, message: Said, *, name: str | None = None) -> Any:
        """Start a session with a message, wait for its end, and return its output.

        It is a session of its own, in task mode, with this session's principal, deadline and
        capabilities. The call ends here and is run again from its first line when the output is
        there. The question is known by the agent and the message; if the words differ from run to
        run, give it a `name`.
        """
        content = self._content(message)
        wait, known = self._waiting.next("agent", self._name_of(content, name))
        if known is not None:
            return self._come_to(known)
        # The child is there, from an earlier run: started again, it would do its work twice.
        if self._waiting.has_begun(wait):
            raise self._waiting.stop_at(NewWait(wait))
        raise self._waiting.stop_at(self._new(wait, content))

    async def start(self, message: Said, *, name: str | None = None) -> StartedChild:
        """Start the same session, and go on at once; wait for its end later, or not at all.

        It ends with the call, and is known in the same way as with `ask`.
        """
        content = self._content(message)
        wait, known = self._waiting.next("agent", self._name_of(content, name))
        if known is None and not self._waiting.has_begun(wait):
            self._waiting.check_new(wait)
            with self._waiting.busy():
                await self._waiting.journal.start_child(
                    self._waiting.call_id, self._new(wait, content)
                )
        return StartedChild(self._waiting, wait, self._come_to)

    def _content(self, message: Said) -> Content:
        content = content_of(message)
        if self._agent.url and not all(isinstance(part, Text) for part in content):
            raise InvalidMessage(f"{self._agent.name} is remote: it takes text only")
        return content

    def _new(self, wait: str, content: Content) -> NewWait:
        agent = self._agent
        check_depth(agent.name, self._waiting.lane.depth, self._max_depth)
        # The other server names its own sessions.
        child_id = "" if agent.url else self._waiting.journal.new_id("ses")
        child = NewChild(
            child_id, agent.name, content, agent.outbox, url=agent.url, queue=agent.queue
        )
        return NewWait(wait, child=child)

    def _name_of(self, content: Content, name: str | None) -> str:
        """Name what is asked: never alike for two agents, also where a name is given."""
        if name is None:
            return digest(self._agent.name, content)
        return f"{quoted(self._agent.name)}:{quoted(check_id('name of a wait', name))}"

    def _come_to(self, known: str) -> Any:
        came = msgspec.json.decode(known)
        if error := came.get("error"):
            failure = msgspec.convert(error, Failure)
            raise SubagentError(f"{self._agent.name} failed: {failure.code}: {failure.message}")
        return self._agent.parse(came["value"])


class StartedChild:
    """A session that was started for a call, which may wait for it later."""

    def __init__(self, waiting: WaitTracker, wait: str, come_to: Callable[[str], Any]) -> None:
        self._waiting = waiting
        self._wait = wait
        self._come_to = come_to

    @property
    def id(self) -> str:
        """The id of its session, while that goes on; empty if it is elsewhere, or over."""
        turn = self._waiting.lane.turn
        requests = turn.requests.values() if turn else ()
        mine = (q for q in requests if q.name == self._wait and q.call_id == self._waiting.call_id)
        return next((q.child for q in mine), "")

    async def result(self) -> Any:
        """Wait for its end, and return its output, as `ask` does."""
        if (known := self._waiting.come_since(self._wait)) is not None:
            return self._come_to(known)
        raise self._waiting.stop_at(NewWait(self._wait))


def check_depth(name: str, depth: int, most: int) -> int:
    """Return how deep an agent is asked by a session, unless that stands too deep already."""
    if depth >= most:
        raise ToolError(
            f"{name} was not asked: it would be {depth + 1} sessions below the first,"
            f" and {most} is the most"
        )
    return depth + 1
