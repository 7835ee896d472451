"""The connections to a store's file: one writer, and the threads that read.

Owns the opening and the closing of them, and is the `Access` of a `SqliteStore`. What the writer
does with what it is given is in `writer.py`.
"""

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.store import Transaction
from outlast.stores.listener import Heard
from outlast.stores.sqlite.checkpoint import wipe
from outlast.stores.sqlite.database import Database, check_process, open_database
from outlast.stores.sqlite.error import explain
from outlast.stores.sqlite.liveness import workers_directory
from outlast.stores.sqlite.notify import (
    ListenerSet,
    LoopListeners,
    PendingResult,
    make_future,
    resolve,
)
from outlast.stores.sqlite.path import FileWatch, check_place
from outlast.stores.sqlite.transaction import OpenTransaction
from outlast.stores.sqlite.writer import Do, Work, WriteJob, Writer, do_works

T = TypeVar("T")
Question = Callable[[Database], Any]

THREADS = 2
MOST = 16


class FileAccess:
    """The connections to one file. Nothing touches the disk before `open()`."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.pid = os.getpid()
        self.writer: Writer | None = None
        self._loop_listeners = LoopListeners()
        self._listeners = ListenerSet(
            self._loop_listeners, clock, workers_directory(path), self._write_hint
        )
        self.watch = FileWatch(path)
        self._readers = Readers(path, clock, self.watch)

    async def open(self) -> None:
        """Open the file and bring its schema up to date."""
        # Before SQLite sees the path: it would make a file wherever it is allowed to.
        check_place(self.path)
        writer = Writer(self.path, self.clock, self._loop_listeners, self.watch)
        await writer.start()
        self._readers.start()
        self.writer = writer

    async def close(self) -> None:
        """Finish what was asked for, then close the connections."""
        assert self.writer is not None
        # Before the writer stops: their addresses are taken out of the file by it.
        self._listeners.stop()
        writer, self.writer = self.writer, None
        # A question that is under way is answered, and the last checkpoint finds the log unused.
        await self._readers.stop()
        await writer.stop()

    def open_writer(self) -> Writer:
        """Return the writer, or refuse if the store is not open in this process."""
        check_process(self.pid)
        if self.writer is None:
            raise StoreUnavailable(
                "this store is not open: use the app inside `async with app`, or open() it first;"
                " a store of your own is opened by migrate()"
            )
        return self.writer

    async def write(self, *works: Work, size: int = 0) -> list[Any]:
        return await self.write_all(do_works, works, size)

    def write_all(
        self, do: Do, items: Sequence[Any], size: int = 0, session: str = ""
    ) -> Coroutine[Any, Any, list[Any]]:
        return self.open_writer().submit(do, items, size, session)

    def _write_hint(self, work: Callable[[Database], object]) -> None:
        if self.writer:
            self.writer.hand_over(WriteJob(None, do=do_works, items=[work]))

    async def read(self, question: Callable[[Database], T]) -> T:
        self.open_writer()
        return await self._readers.ask(question)

    def transaction(self, limit: float) -> AbstractAsyncContextManager[Transaction]:
        return OpenTransaction(self.open_writer, limit)

    def listen(self, heard: Heard, session_id: str) -> Callable[[], None]:
        self.open_writer()
        return self._listeners.listen(heard, session_id)

    async def wipe(self) -> None:
        await asyncio.to_thread(wipe, self.path, self.clock)


@dataclass(slots=True, kw_only=True)
class PendingRead(PendingResult):
    """A question, and the future of its caller."""

    question: Question


class Readers:
    """Answers questions in the order they come, on two threads with a connection each.

    Questions that wait are answered together, from one state of the file. A statement is always
    read to its end, so that no transaction is left open and the log beside the file can be cut.
    """

    def __init__(self, path: Path, clock: Clock, watch: FileWatch) -> None:
        self._path = path
        self._watch = watch
        self._clock = clock
        self._queue: SimpleQueue[PendingRead | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=self._run, name=f"outlast reader {n}", daemon=True)
            for n in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    async def ask(self, question: Callable[[Database], T]) -> T:
        """Return a question's answer, as the file is at some time after now."""
        future = make_future()
        self._queue.put(PendingRead(future, question=question))
        answer: T = await future
        return answer

    async def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    # On the threads

    def _run(self) -> None:
        db: Database | None = None
        while (first := self._queue.get()) is not None:
            asked = [first, *self._waiting()]
            try:
                # Before the answer, not after it: a file that was replaced may look healthy.
                self._watch.check()
                # On the thread that uses it, and with its first question: a store that only writes
                # has no readers.
                db = db or self._open()
                self._answer_all(db, asked)
            except Exception as failure:  # noqa: BLE001 - raised to the caller
                for one in asked:
                    one.error = failure
            resolve(asked)
        if db:
            db.close()

    def _waiting(self) -> Iterator[PendingRead]:
        """Take what waits already, and leave some to the other threads."""
        for _ in range(min(MOST, self._queue.qsize() // THREADS)):
            try:
                asked = self._queue.get_nowait()
            except Empty:
                return
            if asked is None:
                self._queue.put(None)  # the order to stop stays behind earlier questions
                return
            yield asked

    def _open(self) -> Database:
        return open_database(self._path, self._clock, query_only=True)

    def _answer_all(self, db: Database, asked: Sequence[PendingRead]) -> None:
        try:
            db.retry_while_locked(lambda: answer_at_one_instant(db, asked))
        except sqlite3.Error as error:
            raise explain(error, self._path) from error


def answer_at_one_instant(db: Database, asked: Sequence[PendingRead]) -> None:
    """Answer from one state of the file: a log's end and its lanes' rest belong together."""
    db.raw.execute("BEGIN")
    try:
        for one in asked:
            answer(db, one)
    finally:
        db.roll_back()


def answer(db: Database, asked: PendingRead) -> None:
    try:
        asked.result = asked.question(db)
    except sqlite3.Error:
        raise
    except Exception as failure:  # noqa: BLE001 - raised to the caller
        asked.error = failure
