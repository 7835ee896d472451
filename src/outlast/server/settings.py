"""Settings of the server: where it listens, how it authenticates, how much it accepts.

Owns their names, defaults and checks. What each limit does is in `limit.py`, `http_connection.py`
and `response_limit.py`.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from outlast.core.instant import Span
from outlast.core.setting import seconds_of
from outlast.server.principal import Principal

Authenticate = Callable[[Any], Principal | Awaitable[Principal | None] | None]
"""Is given a `starlette.requests.Request` whose body cannot be read."""

MEBIBYTE = 1024 * 1024
SPANS = "heartbeat long_poll timeout body_timeout header_timeout reader_timeout".split()


class ServerSettings(Struct, frozen=True, kw_only=True):
    """How the server listens, whom it knows, and how much it accepts.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 is any free one.
        authenticate: A function that recognises callers; it is called before keys are checked.
        require_key: Require a key of callers on this machine, too.
        allowed_hosts: Names in the Host header that are answered: `api.example.com`,
            `*.example.com`, `*`. If empty: any name for callers with a key, this machine's own
            names for others.
        cors_origins: Origins whose pages may call.
        max_body: Bytes of a body.
        max_callback: Bytes of a post to a callback or a channel.
        max_header: Bytes of an address with its headers.
        rate: Requests per second of one key; 0 is any number.
        burst: Requests of one key at once.
        max_streams_per_key: Streams that one key may have open.
        max_unsent_per_key: Bytes of one key's answers that may wait for slow readers.
        max_connections: Open connections; 0 is as many as there are file descriptors for, less a
            reserve.
        heartbeat: Time between two signs of life in a quiet stream.
        long_poll: How long a long poll waits for news.
        timeout: Time in which a request is answered; after it the answer is 503.
        body_timeout: How long a body may pause. It may take as long in all, and one second more for
            every 16 KiB.
        header_timeout: Time in which a connection has to send the head of a request.
        reader_timeout: Time after which a reader that takes nothing is cut.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    authenticate: Authenticate | None = None
    require_key: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body: int = 8 * MEBIBYTE
    max_callback: int = MEBIBYTE
    max_header: int = 16 * 1024
    rate: float = 100.0
    burst: int = 200
    max_streams_per_key: int = 1000
    max_unsent_per_key: int = 32 * MEBIBYTE
    max_connections: int = 0
    heartbeat: Span = 15.0
    long_poll: Span = 20.0
    timeout: Span = 10.0
    body_timeout: Span = 30.0
    header_timeout: Span = 10.0
    reader_timeout: Span = 30.0

    def __post_init__(self) -> None:
        for name in SPANS:
            seconds_of(f"{name} of the server", getattr(self, name))
