"""The threads that read, each with a connection of its own.

A statement is always read to its end, so that no transaction is left open and the log
beside the file can be cut.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from holdfast.clock import Clock
from holdfast.stores.sqlite.connection import open_database
from holdfast.stores.sqlite.desk import Desk
from holdfast.stores.sqlite.failure import explain

T = TypeVar("T")
Question = Callable[[Desk], Any]
Asked = tuple[Question, asyncio.Future[Any]]

THREADS = 2


class Readers:
    """Answers questions in the order they come, two at a time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._queue: SimpleQueue[Asked | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        self._threads = [
            threading.Thread(target=self._run, name=f"holdfast reader {n}", daemon=True)
            for n in range(THREADS)
        ]
        for thread in self._threads:
            thread.start()

    async def ask(self, question: Callable[[Desk], T]) -> T:
        """Return a question's answer, as the file is at some time after now."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.put((question, future))
        return await future

    async def stop(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    # On the threads

    def _run(self) -> None:
        desk: Desk | None = None
        while (asked := self._queue.get()) is not None:
            question, future = asked
            try:
                desk = desk or self._sit_down()
                answer, error = self._answer(desk, question), None
            except Exception as failure:  # noqa: BLE001 - told to who asked
                answer, error = None, failure
            with suppress(RuntimeError):  # the loop was closed: there is nobody left to tell
                future.get_loop().call_soon_threadsafe(tell, future, answer, error)
        if desk:
            desk.db.close()

    def _sit_down(self) -> Desk:
        return Desk(open_database(self._path, self._clock, query_only=True), self._clock)

    def _answer(self, desk: Desk, question: Question) -> Any:
        try:
            return desk.db.patiently(lambda: at_one_instant(desk, question))
        except sqlite3.Error as error:
            raise explain(error, self._path) from error


def at_one_instant(desk: Desk, question: Question) -> Any:
    """Answer from one state of the file: a log's end and its lanes' rest belong together."""
    desk.db.raw.execute("BEGIN")
    try:
        return question(desk)
    finally:
        desk.db.roll_back()


def tell(future: asyncio.Future[Any], answer: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error:
        future.set_exception(error)
    else:
        future.set_result(answer)
