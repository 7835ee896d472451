"""Reads lines from a terminal or a pipe without blocking the event loop."""

import asyncio
import os
import sys
import threading
from collections import deque
from contextlib import suppress


class LineReader:
    """The standard input. Read by a thread that nothing has to wait for at the end.

    The thread reads the descriptor itself: one that waits in `sys.stdin` would hold its lock
    while the interpreter ends.
    """

    def __init__(self) -> None:
        self._waiting: deque[str] = deque()
        self._is_over = False
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._read, name="outlast lines", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def next(self) -> str | None:
        """Return the next line, or None when there will be no more."""
        while not self._waiting:
            if self._is_over:
                return None
            await self._change()
        return self._waiting.popleft()

    async def next_command(self) -> str:
        """Return the next line once it is one that cannot wait; any other stays for later.

        In a pipe /quit can: what was said before it is still answered.
        """
        urgent = ("/cancel", "/quit") if sys.stdin.isatty() else ("/cancel",)
        while not (self._waiting and self._waiting[0] in urgent):
            await self._change()
        return self._waiting.popleft()

    async def _change(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()

    # On the thread

    def _read(self) -> None:
        left = b""
        with suppress(RuntimeError):  # the loop is closed, so the lines are not wanted any more
            while data := self._read_some():
                *lines, left = (left + data).split(b"\n")
                self._hand_over(lines)
            self._hand_over([left] if left else [])
            self._loop.call_soon_threadsafe(self._end)

    def _read_some(self) -> bytes:
        try:
            return os.read(sys.stdin.fileno(), 65536)
        except OSError:  # the terminal is gone
            return b""

    def _hand_over(self, lines: list[bytes]) -> None:
        texts = [line.decode(errors="replace").strip() for line in lines]
        self._loop.call_soon_threadsafe(self._take, texts)

    def _take(self, texts: list[str]) -> None:
        self._waiting.extend(text for text in texts if text)
        self._arrived.set()

    def _end(self) -> None:
        self._is_over = True
        self._arrived.set()
