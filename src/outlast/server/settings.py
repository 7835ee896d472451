"""Settings of the server: where it listens, how it authenticates, how much it accepts."""

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
    """`authenticate` is asked who sends a request, before the keys in the store are.

    With `require_key` not even this machine gets in without a key. `allowed_hosts` are the names
    in the Host header that are answered to (`*` any, `*.example.com` any below; none given: any
    for who brings a key, this machine's own for who does not). `cors_origins` are the origins
    whose pages may call. Sizes are bytes: of a body, of a callback's body, of all headers.
    `rate` requests a second are taken from a key, `burst` at once; 0 is any number. A stream
    that has nothing to say says so every `heartbeat`, and a long poll of one that has nothing
    new is answered after `long_poll`. A request is answered within `timeout`, or with 503. A body
    may pause for `body_timeout`, and takes no longer in all than that and one second for every
    16 KiB of it. A connection has `header_timeout` to bring the head of a request, and one that
    takes nothing of an answer for `reader_timeout` is ended; of one key's answers no more than
    `max_unsent_per_key` bytes wait to be taken. `max_connections` are open at once; 0 is as many
    as the process has descriptors for, less a reserve.
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
