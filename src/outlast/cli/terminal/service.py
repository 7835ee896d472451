"""Shared by `serve` and `dev`: options, the settings made from them, and signals.

The server itself is loaded when it is needed: it is an extra, and slow to import.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, NamedTuple

import typer
from msgspec.structs import replace

from outlast.app import Outlast
from outlast.cli.command.worker import KILLED_BY
from outlast.cli.terminal.loading import load_named
from outlast.errors import InvalidDefinition, InvalidInput
from outlast.server import ServerSettings

AppName = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is: shop:app")]
Host = Annotated[str | None, typer.Option(help="The address to listen on.", show_default=False)]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="The port; 0 is any that is free.", show_default=False),
]
SettingsName = Annotated[
    str | None,
    typer.Option("--settings", metavar="MODULE:NAME", help="Where the ServerSettings are."),
]
RequireKey = Annotated[bool, typer.Option("--require-key", help="Ask this machine for a key, too.")]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", metavar="NAME", help="A name to answer to; any by default."),
]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option("--cors-origin", metavar="ORIGIN", help="Whose pages may call."),
]


class ServerParts(NamedTuple):
    """The parts of the server that the commands use."""

    open_socket: Callable[[ServerSettings], socket.socket]
    check_closed: Callable[[Outlast, ServerSettings, str], Coroutine[Any, Any, None]]
    listen: Callable[..., Coroutine[Any, Any, None]]


def load_server() -> ServerParts:
    try:
        from outlast.server.serve import check_closed, listen, open_socket
    except ImportError as error:
        raise InvalidDefinition(
            f"the server is not installed ({error}): install Outlast with its extra 'server'"
        ) from error
    return ServerParts(open_socket, check_closed, listen)


def server_settings(
    name: str | None,
    *,
    host: str | None,
    port: int | None,
    require_key: bool = False,
    allowed_hosts: list[str] | None = None,
    cors_origins: list[str] | None = None,
) -> ServerSettings:
    """Return the settings that the user named, with the options in their place."""
    given = load_named(name) if name else ServerSettings()
    if not isinstance(given, ServerSettings):
        raise InvalidInput(f"{name} is of type {type(given).__name__}, and no ServerSettings")
    options = {
        "host": host,
        "port": port,
        "require_key": require_key or None,
        "allowed_hosts": tuple(allowed_hosts) if allowed_hosts else None,
        "cors_origins": tuple(cors_origins) if cors_origins else None,
    }
    return replace(given, **{name: value for name, value in options.items() if value is not None})


def url_of(to: socket.socket) -> str:
    """Return the address of a socket that listens, as a browser takes it."""
    host, port = to.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def heed_signals(stop: asyncio.Event, *, interrupts: bool = True) -> None:
    """The first signal stops gracefully, a second at once; Ctrl-C may be another process's."""
    loop = asyncio.get_running_loop()

    def heed(number: signal.Signals) -> None:
        if stop.is_set():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(KILLED_BY + number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT) if interrupts else (signal.SIGTERM,):
        loop.add_signal_handler(number, heed, number)
