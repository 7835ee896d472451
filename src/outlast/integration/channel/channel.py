"""The contract of a channel, for those who write another one; an app's channels by name.

Owns what a channel is asked for: verify and read a post, send an event. Refuses to know sessions:
`receiver.py` brings what was read to one, `sender.py` has events sent.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.subscription import check_events
from outlast.core.name import OF_CHANNEL, check_id
from outlast.core.setting import listed
from outlast.errors import InvalidDefinition
from outlast.integration.channel.inbound import HttpReply, Inbound, InboundRequest
from outlast.integration.channel.outgoing import Outgoing
from outlast.integration.outbox.webhook import Subscriber

DEFAULT_EVENTS = ("turn.completed", "turn.failed", "request.opened", "authorization.required")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Channel(ABC):
    """A place where people talk to an agent. Each of its threads is a session.

    A post to `/v1/channels/{name}` is verified, read, and goes to the session of its thread; the
    first message starts that session. Events of the types in `events` are sent back to the thread.
    One object serves all threads of a process: keep no state of a conversation in it.
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
        """Raise InvalidSignature unless the request certainly comes from the sender that it names.

        Anyone can post to a channel: no other check stands before the agent.
        """

    @abstractmethod
    def read(self, request: InboundRequest) -> Inbound | HttpReply | None:
        """Return the message or reply in a verified request; None if it has nothing for an agent.

        An HttpReply is answered at once and nothing else happens: a handshake.
        """

    @abstractmethod
    async def send(self, outgoing: Outgoing, thread: str) -> str | None:
        """Send an event to a thread.

        Where the other side begins a thread of its own with it, return that: the session is
        anchored there, and what comes next is sent to it.

        It is called at least once, in order for each session. If it raises, it is called again
        after a growing pause, for a day. Raise Unreachable with `retry_after` if the other side
        says how long to wait, and with `gone=True` if no further try can succeed.
        """

    def token(self, thread: str) -> str:
        """Return the continuation token of a thread.

        A tool that gives it to `ctx.session.set_continuation_token` moves the conversation there.
        """
        return check_id("continuation_token", self._prefix + check_id("thread", thread))

    def thread(self, token: str) -> str | None:
        """Return the thread that a continuation token stands for, if it is one of this channel."""
        # No thread is without a name: a token that ends with its prefix leads nowhere.
        return token.removeprefix(self._prefix) or None if token.startswith(self._prefix) else None

    @property
    def _prefix(self) -> str:
        return f"{OF_CHANNEL}{self.name}:"


def channels_by_name(
    channels: Sequence[Channel], agents: Mapping[str, Subscriber]
) -> dict[str, Channel]:
    """Return channels by name, if each has an agent of this app and no two have one name."""
    found: dict[str, Channel] = {}
    for channel in listed("channels", channels):
        if not isinstance(channel, Channel):
            raise InvalidDefinition(f"a {type(channel).__name__} is not a Channel")
        if channel.name in found:
            raise InvalidDefinition(f"two channels are named {channel.name}", channel=channel.name)
        if channel.agent not in agents:
            raise InvalidDefinition(
                f"channel {channel.name} is for the agent {channel.agent}, which this app has not",
                channel=channel.name,
            )
        found[channel.name] = channel
    return found
