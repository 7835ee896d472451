"""A thousand readers in one process: as little as a reader can be, so that it is not measured.

Each is one connection that asks for a stream as NDJSON, and notes when which offset came.
"""

from __future__ import annotations

import asyncio
import re
import time

OFFSET = re.compile(rb'^\{"offset":(\d+),"type":"([a-z.]+)"', re.MULTILINE)
LAST = b"session.waiting"
AT_ONCE = 50


class Reader(asyncio.Protocol):
    """One stream. `ended` is set when the session waits again."""

    def __init__(self, session_id: str, after: int) -> None:
        self.session_id = session_id
        self.came: list[tuple[int, int]] = []
        self.began = asyncio.Event()
        self.ended = asyncio.Event()
        self._after = after
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        path = f"/v1/sessions/{self.session_id}/stream?after={self._after}"
        transport.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now = time.time_ns()
        self.began.set()
        lines, _, self._rest = (self._rest + data).rpartition(b"\n")
        for offset, kind in OFFSET.findall(lines):
            self.came.append((int(offset), now))
            if kind == LAST:
                self.ended.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.began.set()
        self.ended.set()


async def connect(port: int, wanted: list[tuple[str, int]]) -> list[Reader]:
    """Open a stream for each session and cursor, some at a time; return when all have begun."""
    loop = asyncio.get_running_loop()
    readers = [Reader(session_id, after) for session_id, after in wanted]
    for start in range(0, len(readers), AT_ONCE):
        some = readers[start : start + AT_ONCE]
        opening = (loop.create_connection(lambda r=r: r, "127.0.0.1", port) for r in some)  # type: ignore[misc]
        await asyncio.gather(*opening)
        await asyncio.gather(*(reader.began.wait() for reader in some))
    return readers
