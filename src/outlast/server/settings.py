"""Settings of the server: where it listens, how it authenticates, how much it accepts."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from outlast.server.principal import Principal

Authenticate = Callable[[Any], Principal | Awaitable[Principal | None] | None]
"""Is given a `starlette.requests.Request` whose body cannot be read."""

MEBIBYTE = 1024 * 1024


class ServerSettings(Struct, frozen=True, kw_only=True):
    """`authenticate` is asked who sends a request, before the keys in the store are.

    With `require_key` not even this machine gets in without a key. `allowed_hosts` are the names
    in the Host header that are answered to (`*` any, `*.example.com` any below; none given: any
    for who brings a key, this machine's own for who does not). `cors_origins` are the origins
    whose pages may call. Sizes are bytes: of a body, of a callback's body, of all headers.
    `rate` requests a second are taken from a key, `burst` at once; 0 is any number. A stream
    that has nothing to say says so every `heartbeat` seconds, and a long poll of one that has
    nothing new is answered after `long_poll` seconds. A request is answered within
    `timeout` seconds, or with 503; whoever sends a body has `body_timeout` between two pieces.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    authenticate: Authenticate | None = None
    require_key: bool = False
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body: int = 48 * MEBIBYTE
    max_callback: int = MEBIBYTE
    max_header: int = 16 * 1024
    rate: float = 100.0
    burst: int = 200
    max_streams_per_key: int = 1000
    heartbeat: float = 15.0
    long_poll: float = 20.0
    timeout: float = 10.0
    body_timeout: float = 30.0
