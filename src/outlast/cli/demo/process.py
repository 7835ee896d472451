"""Worker processes: started, killed and, whatever happens, cleared away."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from types import TracebackType
from typing import Self

from outlast.cli.demo.story import DemoFiles
from outlast.cli.demo.worker import READY

GRACE = 3.0


class WorkerFailed(Exception):
    """A worker did what no worker of the demo should."""


class WorkerProcess:
    """One worker process."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.is_ready = False
        self.is_killed = False
        self._process = process

    async def until_ready(self) -> None:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        self.is_ready = line.decode().strip() == READY

    async def kill(self) -> None:
        """SIGKILL: the process runs no more code of its own. Return when it is gone."""
        self.is_killed, self.is_ready = True, False
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def dismiss(self) -> None:
        """Let the worker go home; kill it if it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(GRACE):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def until_gone(self) -> int:
        return await self._process.wait()


class WorkerPool:
    """The workers of one telling. Leaving it leaves no process behind."""

    def __init__(self, files: DemoFiles) -> None:
        self.players: dict[str, WorkerProcess] = {}
        self._files = files
        self._changed = asyncio.Condition()
        self._trouble: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watches: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for watch in self._watches:
            watch.cancel()
        self._trouble.cancel()
        living = [player for player in self.players.values() if not player.is_killed]
        await asyncio.gather(*(p.kill() if error else p.dismiss() for p in living))

    async def start(self) -> None:
        """Start one more worker; it is ready a moment later."""
        name = f"w{len(self.players) + 1}"
        with self._files.worker_log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "outlast.cli.demo.worker",
                str(self._files.directory),
                name,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them all
            )
        player = self.players[name] = WorkerProcess(name, process)
        self._watches.append(asyncio.create_task(self._watch(player)))

    async def _watch(self, player: WorkerProcess) -> None:
        await player.until_ready()
        async with self._changed:
            self._changed.notify_all()
        code = await player.until_gone()
        if not player.is_killed and not self._trouble.done():
            self._trouble.set_exception(
                WorkerFailed(
                    f"worker {player.name} ended by itself (code {code}): "
                    f"see {self._files.worker_log}"
                )
            )

    async def until_ready(self, count: int) -> None:
        """Wait until that many workers are up."""
        async with self._changed:
            await self._changed.wait_for(lambda: sum(p.is_ready for p in self._all()) >= count)

    def _all(self) -> list[WorkerProcess]:
        return list(self.players.values())

    async def until_trouble(self) -> None:
        """Raise StageFailed should a worker end that nobody killed."""
        await asyncio.shield(self._trouble)
