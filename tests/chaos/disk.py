"""A disk that fails under a SQLite store: power is lost between two syncs, it is read-only, full.

The disk is `disk.c`, preloaded into the process that works; this needs a C compiler, which is why
it is a part of `make chaos` and not of the tests. What a power failure leaves is what was synced.
A PostgreSQL run has its tables on such a disk, too, which is full at times (`place.py`).
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from chaos import SEARCH_PATH
from outlast.clock import Clock
from outlast.log.verify import verify
from outlast.stores.url import open_store

SOURCE = Path(__file__).with_name("disk.c")
TIMEOUT = 60.0
ROUNDS = 6
MOST_LINES = 400
"""Of the ledger, before the power is lost; how many it is, is left to chance."""

Line = list[str]


def compiler() -> str | None:
    """Return the C compiler of this machine, if it has one."""
    return shutil.which("cc") or shutil.which("gcc")


async def build(directory: Path) -> Path:
    """Compile the disk into a directory; return the library."""
    library = directory / "disk.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
    process = await asyncio.create_subprocess_exec(*command, "-ldl")
    if await process.wait():
        raise RuntimeError("the disk could not be compiled")
    return library


async def run_disk(directory: Path, seed: int, rounds: int = ROUNDS) -> list[str]:
    """Have the disk fail in every way; return what was found wrong."""
    library = await build(directory)
    chance = random.Random(seed)
    found: list[str] = []
    disk = Disk(directory, library)
    for number in range(rounds):
        found += [f"power loss {number}: {text}" for text in await disk.lose_power(chance)]
    for letter, name, wanted in (
        ("r", "a disk that is read-only", "STORE_UNAVAILABLE"),
        ("f", "a full disk", "STORE_FULL"),
    ):
        found += [f"{name}: {text}" for text in await disk.refuse(letter, wanted)]
    return found


class Disk:
    """A directory on a disk that fails, and what would be left of it."""

    def __init__(self, directory: Path, library: Path) -> None:
        self._library = library
        self._under, self._shadow = directory / "disk", directory / "shadow"
        self._state, self._ledger = directory / "state", directory / "told"
        for place in (self._under, self._shadow):
            place.mkdir()
        self._database = self._under / "outlast.db"

    async def lose_power(self, chance: random.Random) -> list[str]:
        """Kill the process at some line of its ledger, and go on with what was synced."""
        before = len(self._lines())
        most = before + chance.randint(10, MOST_LINES)
        async with self._working() as process:
            await self._until(process, lambda lines: len(lines) >= most)
        shutil.rmtree(self._under)
        shutil.copytree(self._shadow, self._under)
        return await self._missing()

    async def refuse(self, letter: str, wanted: str) -> list[str]:
        """Let the disk fail while the process works, then mend it: work has to go on."""
        count = len(self._lines())
        async with self._working() as process:
            await self._until(process, lambda lines: len(lines) > count + 20)
            self._state.write_text(letter)
            begun = len(self._lines())
            await self._until(process, lambda lines: said(lines[begun:], "refused") >= 10)
            codes = {line[1] for line in self._lines()[begun:] if line[0] == "refused"}
            self._state.write_text("")
            mended = len(self._lines())
            await self._until(process, lambda lines: said(lines[mended:], "ended") >= 5)
        wrong = [f"told as {', '.join(sorted(codes))}"] if codes != {wanted} else []
        return wrong + await self._missing()

    async def _missing(self) -> list[str]:
        """Return what somebody was told and is not in the log, and what is wrong with that."""
        # A copy is looked at: the checks themselves write, and not through the disk that fails.
        copied = self._under.with_name("copy")
        copied.mkdir()
        for file in self._under.glob("outlast.db*"):
            if file.is_file() and not file.name.endswith("-shm"):
                shutil.copy(file, copied)
        try:
            return await self._missing_in(copied / self._database.name)
        finally:
            shutil.rmtree(copied)

    async def _missing_in(self, database: Path) -> list[str]:
        store = open_store(f"sqlite:///{database}", Clock())
        await store.migrate()
        found: list[str] = []
        for line in self._lines():
            if line[0] == "accepted" and await store.listing.delivery(line[2]) is None:
                found.append(f"{line[2]} was accepted and is gone")
        seen = {line[1]: line for line in self._lines() if line[0] == "seen"}
        for session_id, (_, _, offset, kind) in seen.items():
            if await store.listing.session(session_id) is None:
                found.append(f"{session_id} was seen up to {offset} and is gone")
                continue
            page = await store.log.read(session_id, int(offset) - 1, 1)
            if not page.entries or page.entries[0].record.__struct_config__.tag != kind:
                found.append(f"{session_id}: {kind} at {offset} was seen and is gone")
        for info in await store.listing.sessions(limit=100_000):
            found += [str(finding) for finding in await verify(store, info.session_id)]
        await store.close()
        return found

    def _lines(self) -> list[Line]:
        text = self._ledger.read_text() if self._ledger.exists() else ""
        whole, _, _ = text.rpartition("\n")  # what was being written is not told
        return [line.split(" ") for line in whole.splitlines()]

    @asynccontextmanager
    async def _working(self) -> AsyncIterator[asyncio.subprocess.Process]:
        """Have a process work on the disk; when this is left it is killed."""
        self._state.write_text("")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chaos.disk_process"),
            *(str(self._database), str(self._ledger)),
            env={
                **os.environ,
                "PYTHONPATH": SEARCH_PATH,
                "LD_PRELOAD": str(self._library),
                "DISK_UNDER": str(self._under),
                "DISK_STATE": str(self._state),
                "DISK_SHADOW": str(self._shadow),
            },
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    async def _until(
        self, process: asyncio.subprocess.Process, holds: Callable[[list[Line]], bool]
    ) -> None:
        """Wait for something in the ledger; a file has no event."""
        async with asyncio.timeout(TIMEOUT):
            while not holds(self._lines()):
                if process.returncode is not None:
                    raise RuntimeError(f"the process ended with {process.returncode}")
                await asyncio.sleep(0.02)


def said(lines: list[Line], word: str) -> int:
    return sum(line[0] == word for line in lines)
