"""The threads that read, each with a connection of its own.

Questions that wait are answered together, from one state of the file. A statement is always
read to its end, so that no transaction is left open and the log beside the file can be cut.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from outlast.clock import Clock
from outlast.stores.sqlite.database import (
    Database,
    open_database,
)
from outlast.stores.sqlite.error import explain
from outlast.stores.sqlite.notify import PendingResult, make_future, resolve
from outlast.stores.sqlite.path import FileWatch

T = TypeVar("T")
Question = Callable[[Database], Any]

THREADS = 2
MOST = 16


@dataclass(slots=True, kw_only=True)
class PendingRead(PendingResult):
    """A question, and the future of its caller."""

    question: Question


class Readers:
    """Answers questions in the order they come, on two threads."""

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
                self._watch.check()
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
