"""A server in a process of its own, callers that mean no harm, and bytes from those that do."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from http_scene import Caller

from outlast.clock import Clock
from outlast.server.key import add_key, mint
from outlast.server.principal import SCOPES
from outlast.stores.url import open_store

HERE = Path(__file__).parent


class HostileScene:
    """The server, from outside: its address, its keys, its memory and its log."""

    def __init__(self, store: str, port: int, pid: int, log: Path) -> None:
        self.port = port
        self.pid = pid
        self.store = store
        self._log = log

    async def key(self, *scopes: str, tenant: str = "default") -> str:
        """Make a key, by default for everything, and return the header that it goes into."""
        clock = Clock()
        text, info = mint(clock, tenant=tenant, name="test", scopes=scopes or tuple(SCOPES))
        store = open_store(self.store, clock)
        await store.migrate()
        await add_key(store, info)
        await store.close()
        return f"Bearer {text}"

    async def caller(self, *scopes: str) -> Caller:
        """Return a caller with a key of its own."""
        header = {"Authorization": await self.key(*scopes)}
        return Caller(base_url=f"http://127.0.0.1:{self.port}", headers=header, timeout=60)

    def peak(self) -> int:
        """Return the most memory that the server had so far, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        [found] = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
        return int(found) * 1024

    def log(self) -> str:
        return self._log.read_text()


@asynccontextmanager
async def hostile(directory: Path, **given: Any) -> AsyncIterator[HostileScene]:
    """Run a server in a process of its own until the block is left."""
    store, log = f"sqlite:///{directory / 'outlast.db'}", directory / "server.log"
    program = str(HERE / "hostile_process.py")
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, program, json.dumps({"store": store, **given})),
            stdout=PIPE,
            stderr=errors,
        )
    try:
        assert process.stdout is not None
        port = (await process.stdout.readline()).decode()
        assert port, log.read_text()
        yield HostileScene(store, int(port), process.pid, log)
    finally:
        process.kill()
        await process.wait()
