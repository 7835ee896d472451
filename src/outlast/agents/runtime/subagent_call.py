"""Another agent, as a tool asks it: it waits durably for a session of its own.

If that agent is remote, the session is one of its proxy in this app.
"""

from typing import Any

import msgspec

from outlast.agents.runtime.durable_wait import WaitTracker
from outlast.agents.runtime.environment import AgentRef
from outlast.core import codec
from outlast.core.message import Content, Said, content_of
from outlast.core.record import Failure
from outlast.core.result import NewChild, NewWait
from outlast.errors import SubagentError, ToolError

_contents: msgspec.msgpack.Decoder[Content] = msgspec.msgpack.Decoder(Content)


class Subagent:
    """Another agent of the app; made by `ctx.agent`."""

    def __init__(self, waiting: WaitTracker, agent: AgentRef, max_depth: int) -> None:
        self._waiting = waiting
        self._agent = agent
        self._max_depth = max_depth

    async def ask(self, message: Said) -> Any:
        """Start a session with a message, wait for its end, and return its output.

        It is a session of its own, in task mode, whose owner, deadline and capabilities are
        this one's. The call ends here and is run again from its first line when that is done.
        """
        waiting, content = self._waiting, checked(message)
        about = msgspec.json.encode((self._agent.name, content)).decode()
        name, known = waiting.next("agent", about)
        if known is not None:
            return self._come_to(known)
        if waiting.has_begun(name):
            raise await waiting.stop_at(NewWait(name))
        check_depth(self._agent.name, waiting.lane.depth, self._max_depth)
        child_id = waiting.journal.new_id("ses")
        child = NewChild(child_id, self._agent.name, content, self._agent.outbox)
        raise await waiting.stop_at(NewWait(name, child=child))

    def _come_to(self, known: str) -> Any:
        came = msgspec.json.decode(known)
        if error := came.get("error"):
            failure = msgspec.convert(error, Failure)
            raise SubagentError(f"{self._agent.name} failed: {failure.code}: {failure.message}")
        return self._agent.parse(came["value"])


def check_depth(name: str, depth: int, most: int) -> int:
    """Return how deep an agent is asked by a session, unless that stands too deep already."""
    if depth >= most:
        raise ToolError(
            f"{name} was not asked: it would be {depth + 1} sessions below the first,"
            f" and {most} is the most"
        )
    return depth + 1


def checked(message: Said) -> Content:
    """Return a message that a child can be started with, before anything waits for it."""
    return codec.proven(content_of(message), _contents)
