"""A tool's address for somebody outside, and what came in there."""

from __future__ import annotations

from base64 import b64decode
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct

from outlast.agents.runtime.durable_wait import WaitTracker
from outlast.core.instant import milliseconds
from outlast.core.name import PAUSE
from outlast.core.result import NewWait
from outlast.errors import ToolError


class Callback(Struct, frozen=True):
    """What somebody outside sent to a tool's webhook."""

    content_type: str
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        """Return the body as a value."""
        return msgspec.json.decode(self.body)


class Webhook:
    """An address at which a tool can be reached from outside, once, for a while.

    `url` is a secret: whoever knows it can answer in the place of whom you gave it to. It is
    empty once the call has come, when the tool runs again.
    """

    def __init__(self, waiting: WaitTracker, name: str, url: str) -> None:
        self.url = url
        self.name = name
        self._waiting = waiting
        self._pauses = 0

    async def wait(self) -> Callback:
        """Wait for the call, holding nothing; the tool is run again from its first line then."""
        if (known := self._waiting.come_since(self.name)) is None:
            raise await self._waiting.stop_at(NewWait(self.name))
        return self._callback(known)

    async def wait_for(self, duration: timedelta) -> Callback | None:
        """Wait likewise, but for a while only; None if nobody has called by then."""
        self._pauses += 1
        pause = f"{self.name}{PAUSE}{self._pauses}"
        if self._waiting.come_since(pause) is not None:
            return None
        if (known := self._waiting.come_since(self.name)) is not None:
            return self._callback(known)
        raise await self._waiting.stop_until(pause, milliseconds(duration))

    def _callback(self, known: str) -> Callback:
        came = msgspec.json.decode(known)
        if came.get("expired"):
            raise ToolError("nobody called in time")
        body = came["body"].encode()
        return Callback(came["content_type"], b64decode(body) if came.get("base64") else body)
