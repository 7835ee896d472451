"""The store's one writer, which commits in groups.

It has a thread, for what may take long or has to wait. A group there is what came while the last
one was made durable: there is no timer, and of very many the first do not wait for the last.

To hand something to a thread and to get it back takes as long as a quick disk takes to write
it. So while nobody else is at it and the disk is quick, who has something to write does it himself
(`write_here`): whoever has the turn is the writer. What he cannot do at once is left to the thread,
and so is whatever fails.

What is of one kind in a group is done together, and all of its futures are resolved by one
wake-up of their event loop. If a group fails for a reason of its own, its items are done one by
one, so that the one at fault fails alone.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.stores.sqlite.checkpoint import Checkpointer
from outlast.stores.sqlite.database import open_database
from outlast.stores.sqlite.error import explain, is_of_the_disk
from outlast.stores.sqlite.future import Future, Loop, PendingResult, make_future, resolve
from outlast.stores.sqlite.migration import open_for_writing
from outlast.stores.sqlite.notify import Hints, LoopListeners, Notifier
from outlast.stores.sqlite.unit_of_work import UnitOfWork

log = logging.getLogger("outlast.sqlite")

LARGEST_GROUP = 64
QUICK = 0.002
"""How long, in seconds, an event loop may wait for the disk, all in all: some waits are long."""
SMOOTHING = 16
CAUTION = 10
"""If it waits longer: for how many times as long it leaves all to the thread."""

Work = Callable[[UnitOfWork], Any]
Do = Callable[[UnitOfWork, Sequence[Any]], Sequence[Any]]
"""Does items of one kind inside a transaction, and returns what came of each.

It may be done twice, the first time being undone.
"""


def do_works(desk: UnitOfWork, works: Sequence[Work]) -> list[Any]:
    """Do what is done one after the other."""
    return [work(desk) for work in works]


@dataclass(slots=True, kw_only=True)
class WriteJob(PendingResult):
    """Items that are asked for together. The answer is the list of what came of each."""

    do: Do
    items: Sequence[Any]
    is_large: bool = False


def by_kind(jobs: Sequence[WriteJob]) -> dict[Do, list[WriteJob]]:
    kinds: dict[Do, list[WriteJob]] = {}
    for job in jobs:
        kinds.setdefault(job.do, []).append(job)
    return kinds


@dataclass(slots=True)
class StopWriter:
    """The wish to finish; its future is resolved when nothing is left open."""

    future: Future


class ExclusiveJob(Protocol):
    """A job that shares its transaction with nothing else."""

    def serve(self, writer: Writer, desk: UnitOfWork) -> None:
        """Do it, on the writer's thread."""
        ...

    def refuse(self, error: Exception) -> None:
        """Tell who asked that it is not done."""
        ...


class CheckpointJob:
    """The wish that the log beside the file be given room: no event loop waits for that."""

    def serve(self, writer: Writer, desk: UnitOfWork) -> None:
        writer.make_room(desk)

    def refuse(self, error: Exception) -> None:
        """Nobody asked."""


class Writer:
    """Owns the thread, the connection, and the order in which things are written."""

    _desk: UnitOfWork

    def __init__(self, path: Path, clock: Clock, ears: LoopListeners) -> None:
        self._path = path
        self._clock = clock
        self._ears = ears
        self._queue: SimpleQueue[WriteJob | ExclusiveJob | StopWriter] = SimpleQueue()
        self._left_over: list[ExclusiveJob | StopWriter] = []
        self._turn = threading.Lock()
        self._is_wanted = False
        self._is_over = False
        self._failed_here: BaseException | None = None
        self._waited = 0.0
        self._pace = 0.0
        self._cautious_until = 0.0
        self.counts = {"groups": 0, "grouped": 0}

    async def start(self) -> None:
        """Open the file, bring its schema up to date, and begin to take jobs."""
        started = make_future()
        threading.Thread(
            target=self._run, args=(started,), name="outlast writer", daemon=True
        ).start()
        await started

    def submit(self, do: Do, items: Sequence[Any]) -> Future:
        """Have items done, with others of their kind; await the future for what came of them."""
        future = make_future()
        self.put(WriteJob(future, do=do, items=items))
        return future

    def put(self, job: WriteJob | ExclusiveJob) -> None:
        """Leave a job to the thread."""
        self._queue.put(job)
        if self._is_over:
            self._refuse_waiting()

    async def stop(self) -> None:
        """Finish what was submitted, then close the connection."""
        stop = StopWriter(make_future())
        self._queue.put(stop)
        await asyncio.shield(stop.future)

    def write_here(self, jobs: Sequence[WriteJob], loop: Loop) -> bool:
        """Do jobs on the caller's thread, that of `loop`; False if they are the thread's to do."""
        if self._is_wanted or not self._queue.empty() or not self._turn.acquire(blocking=False):
            return False
        try:
            if self._failed_here or self._clock.monotonic() < self._cautious_until:
                return False
            if not (self._desk.db.try_begin() and self._try(jobs)):
                return False
            hints = self._desk.hints
            self.announce(self._desk, jobs, hints, loop)
        finally:
            self._turn.release()
        if hints and (ear := self._ears.by_loop.get(loop)):
            ear.hear(hints)
        return True

    def _try(self, jobs: Sequence[WriteJob]) -> bool:
        """Do jobs in the open transaction, or undo all; the thread sees to what was wrong."""
        try:
            self._do(self._desk, jobs)
        except BaseException as error:
            self._failed_here = error
            with suppress(sqlite3.Error):
                self._desk.db.roll_back()
            if not isinstance(error, Exception):  # a signal, which came to this thread
                raise
            return False
        self._pace += (self._waited - self._pace) / SMOOTHING
        if self._pace > QUICK:
            self._cautious_until = self._clock.monotonic() + CAUTION * self._waited
        return True

    # On the writer's thread

    def _run(self, started: Future) -> None:
        try:
            self._open()
        except Exception as error:  # noqa: BLE001 - whoever waits for the start gets it
            resolve([PendingResult(started, error=error)])
            return
        resolve([PendingResult(started)])
        stop = self._serve(self._desk)
        try:
            self._close()
        finally:
            self._is_over = True
            self._refuse_waiting()
            resolve([PendingResult(stop.future)])

    def _open(self) -> None:
        self._checkpointer = Checkpointer(self._path, self._clock)
        self._messenger = Notifier(self._clock)
        try:
            self._desk = UnitOfWork(open_for_writing(self._path, self._clock), self._clock)
        except BaseException:
            self._messenger.close()
            raise

    def _close(self) -> None:
        with self._turn:  # nobody else takes it any more
            self._checkpointer.stop()
            self._messenger.close()
            self._desk.db.close()

    def _serve(self, desk: UnitOfWork) -> StopWriter:
        while not isinstance(job := self._take(), StopWriter):
            group = [job] if isinstance(job, WriteJob) else []
            with self._turn:
                try:
                    self._serve_one(desk, job, group)
                except Exception as error:  # noqa: BLE001 - without the thread nothing is written
                    self._survive(desk, job, group, error)
        return job

    def _serve_one(
        self, desk: UnitOfWork, job: WriteJob | ExclusiveJob, group: list[WriteJob]
    ) -> None:
        if self._failed_here:
            self.mend(desk, self._failed_here)
            self._failed_here = None
        if isinstance(job, WriteJob):
            self._write_group(desk, group)
        else:
            job.serve(self, desk)

    def _survive(
        self,
        desk: UnitOfWork,
        job: WriteJob | ExclusiveJob,
        group: Sequence[WriteJob],
        error: Exception,
    ) -> None:
        """After what nobody foresaw: let go of the file, and answer who has no answer yet."""
        log.error("the writer met an error", exc_info=error)
        self.mend(desk, error)
        told = self.explain(error)
        resolve([PendingResult(each.future, error=told) for each in group])
        if not isinstance(job, WriteJob):
            job.refuse(told)

    def _take(self) -> WriteJob | ExclusiveJob | StopWriter:
        """Wait for the next thing to do. From then on nobody takes the turn before this thread."""
        self._is_wanted = bool(self._left_over)
        job = self._left_over.pop() if self._left_over else self._queue.get()
        self._is_wanted = True
        return job

    def _write_group(self, desk: UnitOfWork, jobs: list[WriteJob]) -> None:
        """Wait for the file, and write what is there by then."""
        try:
            desk.db.begin()
            self._add_waiting(jobs, LARGEST_GROUP)
            self._do(desk, jobs)
        except Exception as error:  # noqa: BLE001 - sorted out below, told to who asked
            self._recover(desk, jobs, error)
        else:
            self.announce(desk, jobs, desk.hints)

    def _add_waiting(self, jobs: list[WriteJob], most: float = inf) -> None:
        """Add what came while the last group was written, up to what must be done alone."""
        with suppress(Empty):
            while not self._left_over and len(jobs) < most:
                job = self._queue.get_nowait()
                if isinstance(job, WriteJob):
                    jobs.append(job)
                else:
                    self._left_over.append(job)

    # By whoever has the turn

    def _do(self, desk: UnitOfWork, jobs: Sequence[WriteJob]) -> None:
        """Do everything in the open transaction, kind by kind, and commit."""
        desk.hints = {}
        for do, same in by_kind(jobs).items():
            results = iter(do(desk, [item for job in same for item in job.items]))
            for job in same:
                job.result = list(islice(results, len(job.items)))
        self.commit(desk)
        self.counts["groups"] += 1
        self.counts["grouped"] += sum(len(job.items) for job in jobs)

    def commit(self, desk: UnitOfWork) -> None:
        """Make what was written durable."""
        if desk.hints:
            self._messenger.look(desk.db, self._ears.addresses)
        began = self._clock.monotonic()
        desk.db.commit()
        self._waited = self._clock.monotonic() - began

    def announce(
        self,
        desk: UnitOfWork,
        jobs: Sequence[PendingResult],
        hints: Hints,
        here: Loop | None = None,
    ) -> None:
        """Tell who asked, then who listens; one wake-up for each event loop."""
        resolve(jobs, self._ears.by_loop if hints else {}, hints, here)
        if hints:
            self._messenger.send(hints)
        if hints or desk.written:
            if self._checkpointer.look(desk.written):
                self._queue.put(CheckpointJob())
            desk.written = 0

    def make_room(self, desk: UnitOfWork) -> None:
        """Have the log grow before commits need it to."""
        self._checkpointer.make_room(desk.db)

    # When it fails, on the writer's thread

    def mend(self, desk: UnitOfWork, error: BaseException | None = None) -> None:
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

    def _recover(self, desk: UnitOfWork, jobs: list[WriteJob], error: Exception) -> None:
        self._add_waiting(jobs)  # they would wait for the same lock or disk in vain
        self.mend(desk, error)
        if is_of_the_disk(error) or sum(len(job.items) for job in jobs) == 1:
            for job in jobs:
                job.error = self.explain(error)
            self.announce(desk, jobs, {})
            return
        for job in jobs:
            self._write_singly(desk, job)

    def _write_singly(self, desk: UnitOfWork, job: WriteJob) -> None:
        """Do each item of a job in a transaction of its own; the first error is the job's."""
        results: list[Any] = []
        hints: dict[str, bool] = {}
        for item in job.items:
            part = WriteJob(job.future, do=job.do, items=[item])
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

    def _refuse_waiting(self) -> None:
        """Answer what came after the end. Whoever sees that it is over does: nothing stays."""
        error = StoreUnavailable("this store was closed; call migrate() to open it again")
        with suppress(Empty):
            while True:
                job = self._queue.get_nowait()
                if isinstance(job, WriteJob | StopWriter):
                    resolve([PendingResult(job.future, error=error)])
                else:
                    job.refuse(error)
