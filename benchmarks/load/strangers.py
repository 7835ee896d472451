"""Callers that mean no good, in a process of their own: `… strangers PORT IDLE SLOW SESSION`.

Idle ones open a connection and say nothing. Slow ones ask for the stream of a session with a large
message, and read nothing of it. Idle ones that are sent away come again; a slow one that reads
nothing learns of no end. Says `ready` when all were there and all slow ones are full.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from benchmarks.load.party import raise_limit

Visit = Callable[[Callable[[], None]], Awaitable[None]]

AT_ONCE = 50
PAUSE = 0.5
"""Seconds after which one that was sent away comes again."""


async def idle(port: int, arrived: Callable[[], None]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    arrived()
    try:
        await reader.read()
    finally:
        writer.transport.abort()


async def slow(port: int, session_id: str, arrived: Callable[[], None]) -> None:
    to = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    to.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    to.setblocking(False)
    await asyncio.get_running_loop().sock_connect(to, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=to, limit=512)
    try:
        head = f"GET /v1/sessions/{session_id}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"
        writer.write(head.encode())
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        while transport.is_reading() and not reader.at_eof():  # noqa: ASYNC110 - see below
            await asyncio.sleep(PAUSE)  # the reader stops by itself when its buffer is full
        arrived()
        while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(PAUSE)
    finally:
        writer.transport.abort()


async def again(visit: Visit, came: asyncio.Event) -> None:
    """Visit the server for as long as it takes to be sent away, over and over."""
    while True:
        with suppress(OSError):
            await visit(came.set)
        await asyncio.sleep(PAUSE)


async def trouble(port: int, idles: int, slows: int, session_id: str) -> None:
    visits: list[Visit] = []
    visits += [lambda arrived: slow(port, session_id, arrived)] * slows
    visits += [lambda arrived: idle(port, arrived)] * idles
    tasks = []
    for start in range(0, len(visits), AT_ONCE):
        came = [asyncio.Event() for _ in visits[start : start + AT_ONCE]]
        some = zip(visits[start : start + AT_ONCE], came, strict=True)
        tasks += [asyncio.create_task(again(visit, event)) for visit, event in some]
        await asyncio.gather(*(event.wait() for event in came))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in tasks:
        task.cancel()


def main() -> None:
    port, idles, slows, session_id = sys.argv[1:]
    raise_limit()
    asyncio.run(trouble(int(port), int(idles), int(slows), session_id))


if __name__ == "__main__":
    main()
