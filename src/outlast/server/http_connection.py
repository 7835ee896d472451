"""Connections of the server: how many there may be, and how long one may do nothing.

Anyone can open a connection, and each takes a descriptor of the process, which needs some for
itself: for the database, for tools, for the lease of a worker. So there is a cap that leaves a
reserve. Over the cap the connection that has been without a request for longest makes room. Knows
nothing of what is asked; see `outlast.server.limit` for that.
"""

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from outlast.core.instant import seconds
from outlast.log_context import get_logger
from outlast.server.settings import ServerSettings

log = get_logger("outlast.server")

MOST = 20_000
RESERVE = 96
"""Descriptors that are kept for everything else: these, or a quarter if that is more."""
FEWEST = 8
SWEEP = 1.0
IDLE_SWEEP = 0.05
MOST_CLOSED = 50
"""Connections that one sweep closes: closing a thousand at once would keep all callers waiting, and
so would the thousand that come again at once."""
MOST_OF_HEAD = 64 * 1024
"""Bytes of a request's head that are held while the rest of it is awaited."""
FREE_CHUNKS, SMALLEST = 1000, 32
"""From so many chunks of a body on, they have so many bytes each on average."""


def cap(settings: ServerSettings) -> int:
    """Return how many connections there may be at once, as far as descriptors allow it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2 * MOST if soft == resource.RLIM_INFINITY else soft
    fits = min(MOST, files - max(RESERVE, files // 4))
    return max(FEWEST, min(settings.max_connections or fits, fits))


class ConnectionLimiter:
    """The open connections of one server, those without a request in the order of their age."""

    def __init__(self, settings: ServerSettings, most: int, monotonic: Callable[[], float]) -> None:
        self._most = most
        self._header_timeout = seconds(settings.header_timeout)
        self._reader_timeout = seconds(settings.reader_timeout)
        self._monotonic = monotonic
        self._open: set[HttpConnection] = set()
        self._idle: dict[HttpConnection, float] = {}
        self._unsent: dict[HttpConnection, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "HttpConnection") -> None:
        """Count a new connection; if there are too many, end the oldest that has no request."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._idle), None)
            log.warning("connections are closed: too many are open", extra={"most": self._most})
            if oldest is None:
                connection.transport.abort()
                return
            # The one that has been idle for longest: those who do something are left alone.
            self.remove(oldest)
            oldest.transport.abort()
        self._open.add(connection)
        self._idle[connection] = self._monotonic()

    def remove(self, connection: "HttpConnection") -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)
        self._unsent.pop(connection, None)

    def note(self, connection: "HttpConnection") -> None:
        """Take note of whether a connection has a request now; its age counts from when not."""
        if not connection.is_idle:
            self._idle.pop(connection, None)
        elif connection in self._open:
            self._idle.setdefault(connection, self._monotonic())

    def took(self, connection: "HttpConnection") -> None:
        """Take note that a full buffer was emptied: the other side reads."""
        self._unsent.pop(connection, None)

    def end_stuck(self) -> None:
        """End connections that take nothing of an answer."""
        now = self._monotonic()
        for connection in [each for each in self._open if self._is_stuck(each, now)]:
            self.remove(connection)
            connection.transport.abort()

    def end_idle(self) -> None:
        """End connections that bring no whole request, the oldest first and some at a time."""
        now = self._monotonic()
        overdue: list[HttpConnection] = []
        # They are in the order of their age.
        for connection, since in self._idle.items():
            if now - since < self._header_timeout or len(overdue) == MOST_CLOSED:
                break
            # One that has still to take some of an answer is `end_stuck`'s.
            if not connection.transport.get_write_buffer_size():
                overdue.append(connection)
        for connection in overdue:
            self.remove(connection)
            connection.transport.close()

    def _is_stuck(self, connection: "HttpConnection", now: float) -> bool:
        """Whether nothing was taken of an answer for too long."""
        size = connection.transport.get_write_buffer_size()
        before, since = self._unsent.get(connection, (size + 1, now))
        if not size:
            self._unsent.pop(connection, None)
            return False
        # A full buffer takes nothing more, so one that is read shrinks, or is emptied (`took`).
        self._unsent[connection] = (size, now) if size < before else (size, since)
        return size >= before and now - since >= self._reader_timeout

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            self.end_stuck()
            for _ in range(round(SWEEP / IDLE_SWEEP)):
                await asyncio.sleep(IDLE_SWEEP)
                self.end_idle()


class ChunkLimiter(h11.Connection):
    """Parses requests, and refuses bodies that come in very many tiny chunks.

    A chunk costs the same however small it is, and all that were received are parsed in one go: a
    body of one byte per chunk would hold up all other callers.
    """

    def __init__(self, role: type[h11.CLIENT] | type[h11.SERVER], most_of_head: int) -> None:
        super().__init__(role, most_of_head)
        self._chunks = self._bytes = 0

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += 1
            self._bytes += len(event.data)
            if self._chunks > FREE_CHUNKS and self._bytes < SMALLEST * self._chunks:
                raise h11.RemoteProtocolError("the body comes in too many tiny chunks")
        return event


class HttpConnection(H11Protocol):
    """One connection, known to the limiter of its server."""

    def __init__(self, config: "UvicornConfig", **given: Any) -> None:
        super().__init__(config, **given)
        self._limiter = config.limiter
        self.conn = ChunkLimiter(h11.SERVER, config.h11_max_incomplete_event_size or MOST_OF_HEAD)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request. Once an answer has begun, only the end can tell the caller."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # what it answers goes nowhere
            cycle.message_event.set()

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way: none has come whole, or the last was answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._limiter.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limiter.remove(self)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        self._limiter.note(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._limiter.took(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limiter.note(self)


class UvicornConfig(uvicorn.Config):
    """The configuration of uvicorn, with the limiter that its connections share."""

    def __init__(self, *given: Any, limiter: ConnectionLimiter, **options: Any) -> None:
        super().__init__(*given, **options)
        self.limiter = limiter


class LogThrottle(logging.Filter):
    """Lets each line that strangers can cause through once a minute at most."""

    STRANGERS = (
        "socket.accept() out of system resource",
        "Invalid HTTP request received.",
        "Unsupported upgrade request.",
        "No supported WebSocket library detected.",
        "connections are closed: too many are open",
    )
    INTERVAL = 60.0

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = next((each for each in self.STRANGERS if str(record.msg).startswith(each)), None)
        if line is None:
            return True
        now = record.created
        if now - self._last.get(line, -self.INTERVAL) < self.INTERVAL:
            return False
        self._last[line] = now
        return True


throttle = LogThrottle()
