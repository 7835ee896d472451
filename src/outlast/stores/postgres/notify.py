"""Hints that something was written: within the process by a call, beyond it by NOTIFY.

Hints may be lost, and nothing depends on them: waiting code also polls. The first line of a payload
names the process; each further one is 1 or 0 (whether something arrived or a lane was released) and
a session's id.
"""

import asyncio
from collections.abc import Mapping

from outlast.clock import Clock
from outlast.errors import StoreError
from outlast.stores.listener import Listeners
from outlast.stores.postgres.reconnect import Readers
from outlast.stores.postgres.statement import Query, Statement

LONGEST = 7900  # PostgreSQL takes less than 8000 bytes
REST = 0.02
ANYTHING = {"": True}


def to_payload(name: str, hints: Mapping[str, bool]) -> str:
    lines = [name, *(f"{arrived:d}{session_id}" for session_id, arrived in hints.items())]
    payload = "\n".join(lines)
    return payload if len(payload.encode()) <= LONGEST else f"{name}\n1"


def from_payload(payload: str) -> tuple[str, Mapping[str, bool]]:
    """Return the process and its hints; any other text is a hint to look everywhere."""
    name, *lines = payload.split("\n")
    hints = {line[1:]: line[0] == "1" for line in lines if line[:1] in ("0", "1")}
    return name, hints or ANYTHING


class Notifier:
    """Tells other processes, at most once in 20 ms; hints that come meanwhile go together."""

    def __init__(
        self, channel: str, clock: Clock, query: Query, readers: Readers, listeners: Listeners
    ) -> None:
        self._channel = channel
        self._name = clock.token()
        self._query = query
        self._readers = readers
        self._listeners = listeners
        self._hints: dict[str, bool] = {}
        self._rest: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    def tell(self, hints: Mapping[str, bool]) -> None:
        """Tell this process at once and the others soon."""
        # This process's own listeners need no way round by the server.
        self._pass_on(hints)
        for session_id, arrived in hints.items():
            self._hints[session_id] = arrived or self._hints.get(session_id, False)
        if self._rest is None:
            self._send()

    def _send(self) -> None:
        hints, self._hints, self._rest = self._hints, {}, None
        if not hints:
            return
        # After the commit and seldom: with a NOTIFY in each transaction 1,342 commits a second were
        # left of 3,270 (docs/design/reasons.md).
        self._rest = asyncio.get_running_loop().call_later(REST, self._send)
        payload = to_payload(self._name, hints)
        statement = self._query.bind({"channel": self._channel, "hints": payload})
        self._sending = asyncio.create_task(self._notify(statement))

    async def _notify(self, statement: Statement) -> None:
        try:
            await self._readers.ask(statement)
        except StoreError:
            return  # the listeners poll

    def heard(self, payload: str) -> None:
        """Pass on the hints of another process; this one's own were passed on already."""
        name, hints = from_payload(payload)
        if name != self._name:
            self._pass_on(hints)

    def _pass_on(self, hints: Mapping[str, bool]) -> None:
        for session_id, arrived in hints.items():
            self._listeners.tell(session_id, arrived)

    async def stop(self) -> None:
        if self._rest:
            self._rest.cancel()
        self._rest = None
        if self._sending:
            await asyncio.gather(self._sending, return_exceptions=True)
