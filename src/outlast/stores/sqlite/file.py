"""The connections to a store's file: one writer, and readers.

Owns the opening and the closing of them, and is the `Access` of a `SqliteStore`.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

from outlast.clock import Clock
from outlast.errors import StoreUnavailable
from outlast.store import Transaction
from outlast.stores.listener import Heard
from outlast.stores.sqlite.checkpoint import wipe
from outlast.stores.sqlite.database import Database, check_process
from outlast.stores.sqlite.liveness import workers_directory
from outlast.stores.sqlite.notify import ListenerSet, LoopListeners
from outlast.stores.sqlite.path import FileWatch, check_place
from outlast.stores.sqlite.reader import Readers
from outlast.stores.sqlite.transaction import OpenTransaction
from outlast.stores.sqlite.writer import Do, Work, WriteJob, Writer, do_works

T = TypeVar("T")


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
        check_place(self.path)
        writer = Writer(self.path, self.clock, self._loop_listeners, self.watch)
        await writer.start()
        self._readers.start()
        self.writer = writer

    async def close(self) -> None:
        """Finish what was asked for, then close the connections."""
        assert self.writer is not None
        self._listeners.stop()
        writer, self.writer = self.writer, None
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
