"""A gate between processes: closed until the test opens it, then open for all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Self


class Gate:
    """A named pipe. One byte in it, which nobody takes out, says that the gate is open."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = str(path)
        self._pipe = os.open(path, os.O_RDWR)

    def open(self) -> None:
        os.write(self._pipe, b"!")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        os.close(self._pipe)


async def until_open(path: str) -> None:
    """Wait at a gate."""
    loop = asyncio.get_running_loop()
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    opened = asyncio.Event()
    loop.add_reader(pipe, opened.set)
    try:
        await opened.wait()
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


def block_until_open(path: str) -> None:
    """Wait at a gate in a process without an event loop."""
    with Path(path).open("rb") as pipe:
        pipe.read(1)
