"""The contract of a channel: what somebody writes who brings another one."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.subscription import check_events
from outlast.core.name import OF_CHANNEL, check_id
from outlast.errors import InvalidDefinition
from outlast.integration.channel.inbound import HttpReply, Inbound, InboundRequest
from outlast.integration.channel.outgoing import Outgoing

DEFAULT_EVENTS = ("turn.completed", "turn.failed", "request.opened", "authorization.required")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Channel(ABC):
    """Where people talk to an agent. Each thread there is a session.

    What is posted to `/v1/channels/{name}` is verified, read, and goes to the session of its
    thread, which is started with the first message. Events of the types in `events` are sent
    back there. One object serves all of a process: keep nothing of a conversation in it.
    """

    def __init__(
        self,
        name: str,
        agent: Agent[Any, Any] | str,
        *,
        tenant: str = "default",
        events: Sequence[str] = DEFAULT_EVENTS,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidDefinition("a channel's name has letters, digits, _, . and -, at most 64")
        self.name = name
        self.agent = agent if isinstance(agent, str) else agent.name
        self.tenant = check_id("tenant", tenant)
        self.events = check_events(events)

    @abstractmethod
    def verify(self, request: InboundRequest) -> None:
        """Raise InvalidSignature unless the request comes from whom it says.

        Everybody can call this: it is all that stands between them and the agent.
        """

    @abstractmethod
    def read(self, request: InboundRequest) -> Inbound | HttpReply | None:
        """Return what a verified request says; None if that is nothing for an agent.

        An Immediate is answered at once, and nothing else is done: a handshake.
        """

    @abstractmethod
    async def send(self, outgoing: Outgoing, thread: str) -> None:
        """Tell something in a thread.

        Called at least once, in order for each session. What it raises has it called again,
        later each time, for a day: Unreachable, with the seconds to wait as `retry_after` where
        the other side says so, and `gone=True` if there is no use in trying again.
        """

    def token(self, thread: str) -> str:
        """Return the continuation token of a thread.

        A tool that gives it to `ctx.session.set_continuation_token` moves the conversation there.
        """
        return check_id("continuation_token", self._prefix + check_id("thread", thread))

    def thread(self, token: str) -> str | None:
        """Return the thread that a continuation token stands for, if it is one of this channel."""
        return token.removeprefix(self._prefix) if token.startswith(self._prefix) else None

    @property
    def _prefix(self) -> str:
        return f"{OF_CHANNEL}{self.name}:"
