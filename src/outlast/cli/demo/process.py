"""The demo's worker processes: started, killed and always cleaned up.

Run as `python -m outlast.cli.demo.process DIRECTORY NAME`, this module is such a worker: it works
until it is killed or the process that started it is gone. `kill.py` decides when to kill one.
"""

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from types import TracebackType
from typing import Self

from outlast.cli.demo.agent import make_app
from outlast.cli.demo.effect import DemoFiles

GRACE = 3.0


class WorkerFailed(Exception):
    """A worker ended although the demo had not killed it."""


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

    async def stop(self) -> None:
        """Ask the worker to stop; kill it if it does not."""
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
    """The workers of one run. Leaving the context leaves no process behind."""

    def __init__(self, files: DemoFiles) -> None:
        self.processes: dict[str, WorkerProcess] = {}
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
        living = [process for process in self.processes.values() if not process.is_killed]
        await asyncio.gather(*(p.kill() if error else p.stop() for p in living))

    async def start(self) -> None:
        """Start one more worker; it is ready a moment later."""
        name = f"w{len(self.processes) + 1}"
        with self._files.worker_log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "outlast.cli.demo.process",
                str(self._files.directory),
                name,
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends them all
            )
        worker = self.processes[name] = WorkerProcess(name, process)
        self._watches.append(asyncio.create_task(self._watch(worker)))

    async def _watch(self, process: WorkerProcess) -> None:
        await process.until_ready()
        async with self._changed:
            self._changed.notify_all()
        code = await process.until_gone()
        if not process.is_killed and not self._trouble.done():
            self._trouble.set_exception(
                WorkerFailed(
                    f"worker {process.name} ended by itself (code {code}): "
                    f"see {self._files.worker_log}"
                )
            )

    async def until_ready(self, count: int) -> None:
        """Wait until that many workers are up."""
        async with self._changed:
            await self._changed.wait_for(lambda: sum(p.is_ready for p in self._all()) >= count)

    def _all(self) -> list[WorkerProcess]:
        return list(self.processes.values())

    async def until_trouble(self) -> None:
        """Raise WorkerFailed if a worker ends that the demo did not kill."""
        await asyncio.shield(self._trouble)


READY = "ready"


async def work(directory: Path, name: str) -> None:
    async with make_app(directory, name):
        sys.stdout.write(f"{READY}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.buffer.read)  # ends with the process that started us


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=f"{sys.argv[2]} %(levelname)s %(message)s")
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2]))
