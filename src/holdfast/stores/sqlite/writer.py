"""The store's one writer: a thread that commits in groups.

A group is what waited while the last one was made durable; there is no timer. All of a
group's futures are resolved by one wake-up of their event loop. If a group fails for a
reason of its own, its works are done one by one, so that the one at fault fails alone.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from holdfast.clock import Clock
from holdfast.stores.sqlite.checkpoint import Checkpointer
from holdfast.stores.sqlite.connection import open_database
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.failure import explain, is_of_the_disk
from holdfast.stores.sqlite.migration import open_for_writing
from holdfast.stores.sqlite.wakeup import Ear, Ears, Hints, Messenger

Loop = asyncio.AbstractEventLoop
Future = asyncio.Future[Any]
Work = Callable[[Desk], Any]
"""Something to do inside a transaction. It may be done twice, the first time being undone."""


@dataclass(slots=True)
class Job:
    """Works that are asked for together. Its result is the list of theirs."""

    works: Sequence[Work]
    future: Future
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class Stop:
    """The wish to finish; its future is resolved when nothing is left open."""

    future: Future


class Alone(Protocol):
    """A job that shares its transaction with nothing else."""

    def serve(self, writer: Writer, desk: Desk) -> None:
        """Do it, on the writer's thread."""
        ...


class Writer:
    """Owns the thread, its connection, and the order in which things are written."""

    def __init__(self, path: Path, clock: Clock, ears: Ears) -> None:
        self._path = path
        self._clock = clock
        self._ears = ears
        self._queue: SimpleQueue[Job | Alone | Stop] = SimpleQueue()
        self._left_over: list[Alone | Stop] = []

    async def start(self) -> None:
        """Open the file, bring its schema up to date, and begin to take jobs."""
        started = make_future()
        threading.Thread(
            target=self._run, args=(started,), name="holdfast writer", daemon=True
        ).start()
        await started

    def submit(self, works: Sequence[Work]) -> Future:
        """Have the works done together, in the order of submission; await the future."""
        future = make_future()
        self._queue.put(Job(works, future))
        return future

    def submit_alone(self, job: Alone) -> None:
        self._queue.put(job)

    async def stop(self) -> None:
        """Finish what was submitted, then close the connection."""
        stop = Stop(make_future())
        self._queue.put(stop)
        await asyncio.shield(stop.future)

    # On the writer's thread

    def _run(self, started: Future) -> None:
        try:
            desk = Desk(open_for_writing(self._path, self._clock), self._clock)
        except Exception as error:  # noqa: BLE001 - whoever waits for the start gets it
            resolve([Job((), started, error=error)])
            return
        self._messenger = Messenger(self._clock)
        self._checkpointer = Checkpointer(self._path, self._clock)
        resolve([Job((), started)])
        stop = self._serve(desk)
        self._checkpointer.stop()
        self._messenger.close()
        desk.db.close()
        resolve([Job((), stop.future)])

    def _serve(self, desk: Desk) -> Stop:
        while not isinstance(job := self._take(), Stop):
            if isinstance(job, Job):
                self._write_group(desk, job)
            else:
                job.serve(self, desk)
        return job

    def _take(self) -> Job | Alone | Stop:
        return self._left_over.pop() if self._left_over else self._queue.get()

    def _write_group(self, desk: Desk, first: Job) -> None:
        jobs = [first]
        try:
            desk.db.begin()
            self._add_waiting(jobs)
            self._do(desk, jobs)
        except Exception as error:  # noqa: BLE001 - sorted out below, told to who asked
            self._add_waiting(jobs)  # they would wait for the same lock or disk in vain
            self.mend(desk, error)
            self._recover(desk, jobs, error)
        else:
            self.announce(desk, jobs, desk.hints)

    def _add_waiting(self, jobs: list[Job]) -> None:
        """Add what came while the last group was written, up to what must be done alone."""
        with suppress(Empty):
            while not self._left_over:
                job = self._queue.get_nowait()
                if isinstance(job, Job):
                    jobs.append(job)
                else:
                    self._left_over.append(job)

    def _do(self, desk: Desk, jobs: Sequence[Job]) -> None:
        """Do all works in the open transaction, and commit."""
        desk.hints = {}
        for job in jobs:
            job.result = [work(desk) for work in job.works]
        self.commit(desk)

    def commit(self, desk: Desk) -> None:
        """Make what was written durable."""
        if desk.hints:
            self._messenger.look(desk.db)
        desk.db.commit()

    def announce(self, desk: Desk, jobs: Sequence[Job], hints: Hints) -> None:
        """Tell who asked, then who listens; one wake-up for each event loop."""
        resolve(jobs, self._ears.by_loop if hints else {}, hints)
        if hints:
            self._messenger.send(hints, self._ears.addresses)
            self._checkpointer.look(desk.db)

    # When it fails

    def mend(self, desk: Desk, error: BaseException | None = None) -> None:
        """Undo what is open. After an error of the disk, trust nothing that was cached."""
        try:
            desk.db.roll_back()
            if error is None or not is_of_the_disk(error):
                return
            fresh = open_database(self._path, self._clock)
        except Exception:  # noqa: BLE001 - the next job meets it too, and tells who asked
            return
        desk.db.close()
        desk.db = fresh

    def _recover(self, desk: Desk, jobs: Sequence[Job], error: Exception) -> None:
        if is_of_the_disk(error) or sum(len(job.works) for job in jobs) == 1:
            for job in jobs:
                job.error = self.explain(error)
            self.announce(desk, jobs, {})
            return
        for job in jobs:
            self._write_singly(desk, job)

    def _write_singly(self, desk: Desk, job: Job) -> None:
        """Do each work of a job in a transaction of its own; the first error is the job's."""
        results: list[Any] = []
        hints: dict[str, bool] = {}
        for work in job.works:
            part = Job((work,), job.future)
            try:
                desk.db.begin()
                self._do(desk, [part])
            except Exception as error:  # noqa: BLE001 - told to who asked
                self.mend(desk, error)
                job.error = job.error or self.explain(error)
            else:
                results += part.result
                for session_id, arrived in desk.hints.items():
                    hints[session_id] = arrived or hints.get(session_id, False)
        job.result = results
        self.announce(desk, [job], hints)

    def explain(self, error: Exception) -> Exception:
        return explain(error, self._path) if isinstance(error, sqlite3.Error) else error


def make_future() -> Future:
    return asyncio.get_running_loop().create_future()


def resolve(
    jobs: Sequence[Job], ears: Mapping[Loop, Ear] | None = None, hints: Hints | None = None
) -> None:
    """Resolve the jobs' futures and pass on the hints, each on its own event loop."""
    by_loop: dict[Loop, list[Job]] = {loop: [] for loop in ears or ()}
    for job in jobs:
        by_loop.setdefault(job.future.get_loop(), []).append(job)
    for loop, own in by_loop.items():
        ear = ears.get(loop) if ears else None
        with suppress(RuntimeError):  # the loop was closed: there is nobody left to tell
            loop.call_soon_threadsafe(wake, own, ear, hints)


def wake(jobs: Sequence[Job], ear: Ear | None, hints: Hints | None) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
    if ear and hints:
        ear.hear(hints)
