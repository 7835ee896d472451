"""The server on a socket of its own, until it is asked to stop.

Owns the socket and the settings of uvicorn. They are fixed, so that what the tests see is what
runs: one implementation of HTTP, no websockets, no header of a proxy is believed, and addresses are
not logged, since they may be secrets. What is served is made by `asgi.py`.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from msgspec.structs import replace

from outlast.app import Outlast
from outlast.errors import InvalidInput
from outlast.server.address import is_loopback
from outlast.server.asgi import create
from outlast.server.http_connection import (
    ConnectionLimiter,
    HttpConnection,
    UvicornConfig,
    cap,
    throttle,
)
from outlast.server.key import list_keys, living
from outlast.server.settings import ServerSettings
from outlast.server.stream.response import cut_is_no_fault

BACKLOG = 2048
ACCEPTS = 16
"""Connections that are accepted at once, before they are counted; the backlog has the others."""
GRACE = 10
"""Seconds that requests under way have to end when the server stops."""


def open_socket(settings: ServerSettings) -> socket.socket:
    """Begin to listen; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol named, asyncio sends small pieces at once; else each waits for 40 ms.
    to = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        to.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        to.bind((settings.host, settings.port))
        to.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        to.close()
        raise InvalidInput(
            f"cannot listen on {settings.host}, port {settings.port}: {error};"
            " use another --port or --host"
        ) from error
    return to


async def check_closed(app: Outlast, settings: ServerSettings, name: str = "MODULE:APP") -> None:
    """Refuse to listen beyond loopback without authentication.

    `name` is where the app is: a key for it belongs into its own store.
    """
    if is_loopback(settings.host) or settings.authenticate or settings.require_key:
        return
    if not living(await list_keys(app.store)):
        raise InvalidInput(
            f"{settings.host} can be reached from other machines, and there is no key yet: make"
            f" one with `outlast keys create --app {name} --scopes read,send`, or say"
            " --require-key, or listen on 127.0.0.1"
        )


class UvicornServer(uvicorn.Server):
    """Uvicorn without signal handlers: the caller handles signals."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


async def listen(
    app: Outlast,
    settings: ServerSettings,
    to: socket.socket,
    stop: asyncio.Event,
    ready: Callable[[], None],
) -> None:
    """Serve an app that is open, until `stop` is set and what was under way has ended."""
    if not is_loopback(settings.host):
        # A caller on another machine is not this machine's owner, who needs no key.
        settings = replace(settings, require_key=settings.authenticate is None)
    most = cap(settings)
    api = create(app, replace(settings, max_streams_per_key=streams_of(settings, most)))
    limiter = ConnectionLimiter(settings, most, app.clock.monotonic)

    def started() -> None:
        to.listen(BACKLOG)  # asyncio has set it to what is accepted at once
        ready()

    server = UvicornServer(configuration(api, settings, limiter), started)
    stopping = asyncio.create_task(stop.wait(), name="outlast server stop")
    stopping.add_done_callback(lambda _: end(server, api.state.backend.feeds.close))
    sweeping = asyncio.create_task(limiter.run(), name="outlast server connections")
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.WARNING)
    log.addFilter(cut_is_no_fault)
    for name in ("uvicorn.error", "asyncio", "outlast.server"):
        logging.getLogger(name).addFilter(throttle)
    try:
        await server.serve([to])
    finally:
        for task in (stopping, sweeping):
            task.cancel()
        await asyncio.gather(stopping, sweeping, return_exceptions=True)


def streams_of(settings: ServerSettings, most: int) -> int:
    """Return how many streams a key may have open: never all connections that there are."""
    return min(settings.max_streams_per_key or most, most // 2)


def end(server: uvicorn.Server, close_streams: Callable[[], None]) -> None:
    """Streams would go on for ever: end them, then wait for the rest."""
    # Before the server is told: it waits for all that is under way.
    close_streams()
    server.should_exit = True


def configuration(
    api: Callable[..., object], settings: ServerSettings, limiter: ConnectionLimiter
) -> UvicornConfig:
    return UvicornConfig(
        api,
        limiter=limiter,
        http=HttpConnection,
        backlog=ACCEPTS,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE,
        # Beyond this not even the refusal of too many headers can be said nicely.
        h11_max_incomplete_event_size=4 * settings.max_header,
    )
