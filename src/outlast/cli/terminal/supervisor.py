"""A process that is begun anew whenever a file of Python changes."""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Iterator, Sequence
from pathlib import Path

from outlast.cli.terminal.output import error_out

PAUSE = 0.3
"""Seconds between two looks at the files."""
NOT_OURS = ("__pycache__", "node_modules", "site-packages")

Files = dict[str, tuple[int, int]]


def python_files(root: Path) -> Iterator[Path]:
    """Give the files of Python below a directory, without those of installed packages."""
    for here, directories, names in os.walk(root):
        directories[:] = [
            name
            for name in directories
            if not name.startswith(".")
            and name not in NOT_OURS
            and not Path(here, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(here, name) for name in names if name.endswith(".py"))


def look(root: Path) -> Files:
    """Return what tells whether a file has changed, for all of them."""
    found: Files = {}
    for path in python_files(root):
        try:
            stat = path.stat()
        except OSError:
            continue  # gone since
        found[str(path)] = (stat.st_mtime_ns, stat.st_size)
    return found


def changed(before: Files, now: Files) -> list[str]:
    names = before.keys() | now.keys()
    return sorted(name for name in names if before.get(name) != now.get(name))


class Supervisor:
    """Keeps one process running, until a signal says that it is enough."""

    def __init__(self, command: Sequence[str], root: Path) -> None:
        self._command = command
        self._root = root
        self._stop = asyncio.Event()
        self._process: Process | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        while not self._stop.is_set():
            files = await asyncio.to_thread(look, self._root)
            self._process = process = await asyncio.create_subprocess_exec(*self._command)
            ended = asyncio.create_task(process.wait())
            names = await self._until_changed(files, ended)
            if names:
                error_out(f"{', '.join(short(name, self._root) for name in names)} changed")
                self._terminate()
            await ended
        return 0

    async def _until_changed(self, files: Files, ended: asyncio.Task[int]) -> list[str]:
        """Wait for a change, or for a signal; a process that ends by itself waits to be mended."""
        was_running = True
        while not self._stop.is_set():
            if was_running and ended.done():
                was_running = False
                error_out(f"ended with {ended.result()}; begins anew when a file changes")
            names = changed(files, await asyncio.to_thread(look, self._root))
            if names:
                return names
            await self._pause()
        return []

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(PAUSE):
                await self._stop.wait()
        except TimeoutError:
            return

    def _ask_to_stop(self) -> None:
        self._stop.set()
        self._terminate()

    def _terminate(self) -> None:
        """Have the process end, by the one signal that it heeds: Ctrl-C is ours alone."""
        if self._process and self._process.returncode is None:
            self._process.terminate()


def short(name: str, root: Path) -> str:
    return os.path.relpath(name, root)
