"""Inbound callbacks: a one-time address at which a service outside reaches a waiting tool.

Owns what a tool is given (`Callback`) and what arrived (`ReceivedCallback`). Knows no HTTP: the
address is opened by `ctx.callback`, and `session/callback.py` accepts what is posted to it.
"""

from base64 import b64decode
from typing import Any

import msgspec
from msgspec import Struct

from outlast.agents.runtime.durable_wait import WaitTracker
from outlast.core.instant import Span, milliseconds
from outlast.core.result import NewWait
from outlast.errors import ToolError


class ReceivedCallback(Struct, frozen=True):
    """The content of one call from outside."""

    content_type: str
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        """Return the body as a value."""
        return msgspec.json.decode(self.body)


class Callback:
    """An address at which a tool can be reached from outside, once, for a while.

    `url` is a secret: any caller that has it can use it. It is empty once the call has come and the
    tool runs again.
    """

    def __init__(self, waiting: WaitTracker, name: str, url: str) -> None:
        self.url = url
        self.name = name
        self._waiting = waiting
        self._pauses = 0

    async def wait(self) -> ReceivedCallback:
        """Park until the call comes; the tool is then run again from its first line."""
        if (known := self._waiting.come_since(self.name)) is None:
            raise self._waiting.stop_at(NewWait(self.name))
        return self._received(known)

    async def wait_for(self, timeout: Span) -> ReceivedCallback | None:
        """Do the same, but only for a while; return None if no call has come by then."""
        self._pauses += 1
        # Each wait for a while is one of its own: the second does not end with the first one's
        # timer.
        pause = f"{self.name}~{self._pauses}"
        if self._waiting.come_since(pause) is not None:
            return None
        if (known := self._waiting.come_since(self.name)) is not None:
            return self._received(known)
        raise self._waiting.stop_until(pause, milliseconds(timeout), NewWait(self.name))

    def _received(self, known: str) -> ReceivedCallback:
        came = msgspec.json.decode(known)
        if came.get("expired"):
            raise ToolError("nobody called in time")
        body = came["body"].encode()
        return ReceivedCallback(
            came["content_type"], b64decode(body) if came.get("base64") else body
        )
