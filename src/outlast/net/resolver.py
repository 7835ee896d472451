"""Resolves names to addresses with the system's resolver, in threads that block no exit."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


async def look_up(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host, the preferred one first; none if it is not known.

    The thread is a daemon of its own: a resolver that hangs for minutes takes no place in the
    loop's pool, and does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[Sequence[str]] = loop.create_future()

    def settle(addresses: Sequence[str]) -> None:
        if not found.done():
            found.set_result(addresses)

    def work() -> None:
        addresses = addresses_of(host, port)
        with suppress(RuntimeError):  # the loop was closed: no caller waits any more
            loop.call_soon_threadsafe(settle, addresses)

    threading.Thread(target=work, name="outlast resolver", daemon=True).start()
    return await found


def addresses_of(host: str, port: int) -> Sequence[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
