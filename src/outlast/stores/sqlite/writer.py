"""The store's one writer: `submit()` runs items in the next transaction and returns their results.

Commits are made in groups. Items that event loops submit in one iteration are one group
(`LoopBatcher`); so are those that come while the writer's thread makes the last group durable.
There is no timer, and a group is bounded, so the first of very many do not wait for the last.

While the file is uncontended and the disk is fast, the event loop commits directly
(`write_here`). To hand a group to a thread and back takes as long as a fast disk takes to write it:
without this a step took 0.2 ms more, 35 %. Large writes, contention and every failure go to the
thread. Items of one kind are done together, and their futures are resolved by one wake-up of their
loop. If a group fails for a reason of its own, its items are done one by one, so that the one at
fault fails alone.

Knows no table: `commit.py`, `admission.py` and the other topics do. `notify.py` sends the hints.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.stores.sqlite.checkpoint import Checkpointer
from outlast.stores.sqlite.database import (
    Database,
    open_database,
)
from outlast.stores.sqlite.error import explain, is_of_the_disk
from outlast.stores.sqlite.liveness import workers_directory
from outlast.stores.sqlite.migration import open_for_writing
from outlast.stores.sqlite.notify import (
    Future,
    Hints,
    Loop,
    LoopListeners,
    Notifier,
    PendingResult,
    make_future,
    resolve,
)
from outlast.stores.sqlite.path import FileReplaced, FileWatch

log = logging.getLogger("outlast.sqlite")

LARGEST_GROUP = 64
LARGE = 256 * 1024
"""From how many bytes on the thread writes."""
QUICK = 0.002
"""How many seconds an event loop may wait for the disk, smoothed: single waits may be long."""
SMOOTHING = 16
CAUTION = 10
"""After a longer wait the loop leaves everything to the thread for this many times as long."""

Work = Callable[[Database], Any]
Do = Callable[[Database, Sequence[Any]], Sequence[Any]]
"""Does items of one kind inside a transaction, and returns the result of each.

It may be called twice for an item, the first transaction being undone.
"""


def do_works(db: Database, works: Sequence[Work]) -> list[Any]:
    """Run functions one after the other."""
    return [work(db) for work in works]


@dataclass(slots=True, kw_only=True)
class WriteJob(PendingResult):
    """Items that were submitted together. The result is the list of their results."""

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
    """Asks the thread to finish; its future is resolved when nothing is left open."""

    future: Future


class ExclusiveJob(Protocol):
    """A job that shares its transaction with nothing else."""

    def serve(self, writer: Writer, db: Database) -> None:
        """Do it, on the writer's thread."""
        ...

    def refuse(self, error: Exception) -> None:
        """Tell the caller that it is not done."""
        ...


class CheckpointJob:
    """Makes the log beside the file grow ahead of need; no event loop waits for it."""

    def serve(self, writer: Writer, db: Database) -> None:
        writer.make_room(db)

    def refuse(self, error: Exception) -> None:
        """Do nothing: no caller waits."""


class Writer:
    """Owns the thread, the connection, and the order in which things are written."""

    _db: Database

    def __init__(
        self, path: Path, clock: Clock, listeners: LoopListeners, watch: FileWatch
    ) -> None:
        self._path = path
        self._watch = watch
        self._clock = clock
        self._listeners = listeners
        self._batchers: WeakKeyDictionary[Loop, LoopBatcher] = WeakKeyDictionary()
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

    # Not `async`: it returns the batcher's coroutine, which saves a frame for each commit.
    def submit(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> Coroutine[Any, Any, list[Any]]:
        """Do items that write about `size` bytes, in one transaction with others of their kind.

        `session` is named where all of them are one session's.
        """
        loop = asyncio.get_running_loop()
        batcher = self._batchers.get(loop)
        if batcher is None:
            batcher = self._batchers.setdefault(loop, LoopBatcher(self))
        return batcher.write(do, items, size, session)

    def hand_over(self, job: WriteJob | ExclusiveJob) -> None:
        """Leave a job to the thread."""
        # First put, then look: a thread that ends between the two finds the job, or this call does.
        self._queue.put(job)
        if self._is_over:
            self._refuse_waiting()

    async def stop(self) -> None:
        """Finish what was submitted, then close the connection."""
        # Jobs that were batched in this iteration of the loop go to the thread before the order to
        # stop does.
        if batcher := self._batchers.get(asyncio.get_running_loop()):
            batcher.finish()
        self._batchers.clear()
        stop = StopWriter(make_future())
        self._queue.put(stop)
        # The thread stops in any case: a caller that is cancelled must not leave a connection that
        # closes unseen.
        await asyncio.shield(stop.future)

    def write_here(self, jobs: Sequence[WriteJob], loop: Loop) -> bool:
        """Do jobs on the caller's thread, that of `loop`; False if the thread has to."""
        # Jobs that the thread has were submitted earlier, so they are written first.
        if self._is_wanted or not self._queue.empty() or not self._turn.acquire(blocking=False):
            return False
        try:
            # A failure is mended on the thread, which may wait and open a new connection: the loop
            # may not.
            if self._failed_here or self._clock.monotonic() < self._cautious_until:
                return False
            if not (self._db.try_begin() and self._try(jobs)):
                return False
            hints = self._db.hints
            self.announce(self._db, jobs, hints, loop)
        finally:
            self._turn.release()
        # After the turn was released: a listener may write at once.
        if hints and (listener := self._listeners.by_loop.get(loop)):
            listener.hear(hints)
        return True

    def _try(self, jobs: Sequence[WriteJob]) -> bool:
        """Do jobs in the open transaction, or undo all; the thread deals with the failure."""
        try:
            self._do(self._db, jobs)
        except BaseException as error:
            # Only noted: the thread does the same jobs again, and finds out what is at fault.
            self._failed_here = error
            with suppress(sqlite3.Error):
                self._db.roll_back()
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
        except Exception as error:  # noqa: BLE001 - raised to the caller of `start`
            resolve([PendingResult(started, error=error)])
            return
        resolve([PendingResult(started)])
        stop = self._serve(self._db)
        try:
            self._close()
        finally:
            # Before the queue is emptied for the last time: see `hand_over`.
            self._is_over = True
            self._refuse_waiting()
            resolve([PendingResult(stop.future)])

    def _open(self) -> None:
        self._checkpointer = Checkpointer(self._path, self._clock)
        self._notifier = Notifier(workers_directory(self._path), self._listeners)
        try:
            self._db = open_for_writing(self._path, self._clock)
            self._watch.note()
        except BaseException:
            self._notifier.close()
            raise

    def _close(self) -> None:
        # An event loop may be writing on the connection: wait for it before closing.
        with self._turn:
            self._checkpointer.stop()
            self._notifier.close()
            self._db.close()

    def _serve(self, db: Database) -> StopWriter:
        while not isinstance(job := self._take(), StopWriter):
            group = [job] if isinstance(job, WriteJob) else []
            with self._turn:
                try:
                    self._serve_one(db, job, group)
                except Exception as error:  # noqa: BLE001 - without the thread nothing is written
                    self._survive(db, job, group, error)
        return job

    def _serve_one(self, db: Database, job: WriteJob | ExclusiveJob, group: list[WriteJob]) -> None:
        # An event loop has left it rolled back; a connection that met an error of the disk is
        # replaced first.
        if self._failed_here:
            self.mend(db, self._failed_here)
            self._failed_here = None
        if isinstance(job, WriteJob):
            self._write_group(db, group)
        else:
            job.serve(self, db)

    def _survive(
        self,
        db: Database,
        job: WriteJob | ExclusiveJob,
        group: Sequence[WriteJob],
        error: Exception,
    ) -> None:
        """After an unforeseen error: roll back, and fail the callers that have no result yet."""
        log.error("the writer met an error", exc_info=error)
        self.mend(db, error)
        told = self.explain(error)
        resolve([PendingResult(each.future, error=told) for each in group])
        if not isinstance(job, WriteJob):
            job.refuse(told)

    def _take(self) -> WriteJob | ExclusiveJob | StopWriter:
        """Wait for the next job. From then on no event loop takes the turn before this thread."""
        self._is_wanted = bool(self._left_over)
        job = self._left_over.pop() if self._left_over else self._queue.get()
        self._is_wanted = True
        return job

    def _write_group(self, db: Database, jobs: list[WriteJob]) -> None:
        """Wait for the file's lock, and write everything that was submitted by then."""
        try:
            # The waiting jobs are added once the lock is had: those that came while it was waited
            # for share the commit.
            db.begin()
            self._add_waiting(jobs, LARGEST_GROUP)
            self._do(db, jobs)
        except Exception as error:  # noqa: BLE001 - handled below, raised to the callers
            self._recover(db, jobs, error)
        else:
            self.announce(db, jobs, db.hints)

    def _add_waiting(self, jobs: list[WriteJob], most: float = inf) -> None:
        """Add jobs that came while the last group was written, up to an exclusive one."""
        with suppress(Empty):
            while not self._left_over and len(jobs) < most:
                job = self._queue.get_nowait()
                if isinstance(job, WriteJob):
                    jobs.append(job)
                else:
                    self._left_over.append(job)

    # On the thread that has the turn

    def _do(self, db: Database, jobs: Sequence[WriteJob]) -> None:
        """Do everything in the open transaction, kind by kind, and commit."""
        db.hints = {}
        for do, same in by_kind(jobs).items():
            items = [item for job in same for item in job.items]
            self.counts["grouped"] += len(items)
            results = iter(do(db, items))
            for job in same:
                job.result = list(islice(results, len(job.items)))
        self.commit(db)
        self.counts["groups"] += 1

    def commit(self, db: Database) -> None:
        """Make the open transaction durable, and note how long the disk took."""
        # In the transaction: the addresses are those that are registered as of this very commit.
        if db.hints:
            self._notifier.look(db)
        # A microsecond each: no receipt is given for what goes into a file without a name.
        self._watch.check_with_log()
        began = self._clock.monotonic()
        db.commit()
        self._waited = self._clock.monotonic() - began

    def announce(
        self,
        db: Database,
        jobs: Sequence[PendingResult],
        hints: Hints,
        here: Loop | None = None,
    ) -> None:
        """Resolve the callers' futures, then send hints; one wake-up for each event loop."""
        # The callers first: hints are for others, and may be lost.
        resolve(jobs, self._listeners.by_loop if hints else {}, hints, here)
        if hints:
            self._notifier.send(hints)
        if hints or db.written:
            if self._checkpointer.look(db.written):
                self._queue.put(CheckpointJob())
            db.written = 0

    def make_room(self, db: Database) -> None:
        """Make the log grow before commits need it to."""
        self._checkpointer.make_room(db)

    # When it fails, on the writer's thread

    def mend(self, db: Database, error: BaseException | None = None) -> None:
        """Roll back. After an error of the disk open a new connection: the cache may be wrong."""
        try:
            db.roll_back()
            if error is None or isinstance(error, FileReplaced) or not is_of_the_disk(error):
                return
            self._watch.check_with_log()
            fresh = open_database(self._path, self._clock)
        except Exception:  # noqa: BLE001 - the next job meets it too, and fails
            return
        # Others hold this Database object, so it stays; only the connection in it is replaced.
        db.close()
        db.raw = fresh.raw
        self._watch.note()

    def _recover(self, db: Database, jobs: list[WriteJob], error: Exception) -> None:
        self._add_waiting(jobs)  # they would wait in vain for the same lock or disk
        self.mend(db, error)
        if is_of_the_disk(error) or sum(len(job.items) for job in jobs) == 1:
            for job in jobs:
                job.error = self.explain(error)
            self.announce(db, jobs, {})
            return
        for job in jobs:
            self._write_singly(db, job)

    def _write_singly(self, db: Database, job: WriteJob) -> None:
        """Do each item of a job in a transaction of its own; the first error is the job's."""
        results: list[Any] = []
        hints: dict[str, bool] = {}
        for item in job.items:
            part = WriteJob(job.future, do=job.do, items=[item])
            try:
                db.begin()
                self._do(db, [part])
            except Exception as error:  # noqa: BLE001 - raised to the caller
                self.mend(db, error)
                job.error = job.error or self.explain(error)
            else:
                results += part.result
                for session_id, arrived in db.hints.items():
                    hints[session_id] = arrived or hints.get(session_id, False)
        job.result = results
        self.announce(db, [job], hints)

    def explain(self, error: Exception) -> Exception:
        """Return the error to tell; a file that was copied over looks damaged to SQLite."""
        if not isinstance(error, sqlite3.Error):
            return error
        if is_of_the_disk(error):
            try:
                self._watch.check_with_log()
            except FileReplaced as replaced:
                return replaced
        return explain(error, self._path)

    def _refuse_waiting(self) -> None:
        """Fail jobs that came after the end. Every thread that sees the end does: none is left."""
        error = StoreUnavailable("this store was closed; call migrate() to open it again")
        with suppress(Empty):
            # The thread is gone, and no other would ever answer these.
            while True:
                job = self._queue.get_nowait()
                if isinstance(job, WriteJob | StopWriter):
                    resolve([PendingResult(job.future, error=error)])
                else:
                    job.refuse(error)


class LoopBatcher:
    """Groups the writes of one event loop, iteration by iteration.

    Items of one iteration are written at its end, as one group: of many sessions none pays for a
    disk alone. But the session that wrote last, and wrote alone, is expected to be alone again: its
    first write of an iteration is made at once. So a lone session never waits for its loop.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._waiting: list[WriteJob] = []
        self._came = 0
        self._alone = ""

    async def write(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> list[Any]:
        """See `Writer.submit`."""
        loop = asyncio.get_running_loop()
        job = WriteJob(None, do=do, items=items, is_large=size > LARGE)
        # Sessions that write in the same iteration would each pay for a disk of their own, if the
        # first went ahead.
        is_alone = session and session == self._alone and not self._came
        if not (is_alone and self._write_here([job], loop)):
            if not self._came:
                # Everything that is ready in this iteration runs before it, and may add to the
                # group.
                loop.call_soon(self._end_iteration, loop)
            self._came += 1
            # Noted as it goes into a group: whether it stays alone shows at the end of the
            # iteration.
            self._alone = session if self._came == 1 else ""
            job.future = loop.create_future()
            self._waiting.append(job)
            await job.future
        if job.error:
            raise job.error
        results: list[Any] = job.result
        return results

    def finish(self) -> None:
        """Leave what waits for the end of the iteration to the writer's thread."""
        group, self._waiting = self._waiting, []
        self._hand_over(group)

    def _end_iteration(self, loop: Loop) -> None:
        group, self._waiting = self._waiting[:LARGEST_GROUP], self._waiting[LARGEST_GROUP:]
        self._came = len(self._waiting)
        # The rest goes with the next iteration, so that a crowd does not hold up the loop for all
        # of it.
        if self._waiting:
            loop.call_soon(self._end_iteration, loop)
        try:
            if self._write_here(group, loop):
                group = []
        finally:  # also if a signal interrupts it
            self._hand_over(group)

    def _hand_over(self, jobs: Sequence[WriteJob]) -> None:
        for job in jobs:
            self._writer.hand_over(job)

    def _write_here(self, jobs: Sequence[WriteJob], loop: Loop) -> bool:
        if not jobs:
            return False
        for job in jobs:
            if job.is_large:
                return False
        return self._writer.write_here(jobs, loop)
