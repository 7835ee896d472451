"""Who listens to a store: one ear for each event loop, registered for other processes to see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outlast.clock import Clock
from outlast.stores.listener import Heard
from outlast.stores.sqlite.notify import LoopListener, LoopListeners, place
from outlast.stores.sqlite.statement import Params
from outlast.stores.sqlite.writer import Writer, do_works


class ListenerSet:
    """Opens an ear with the first listener of an event loop, and closes it with the last."""

    def __init__(
        self, ears: LoopListeners, clock: Clock, writer: Callable[[], Writer | None]
    ) -> None:
        self._ears = ears
        self._clock = clock
        self._writer = writer

    def listen(self, heard: Heard, session_id: str) -> Callable[[], None]:
        """Begin to call a listener; returns what stops it."""
        ear = self._ear()
        stop_one = ear.listeners.add(heard, session_id)

        def stop() -> None:
            was_open = bool(ear.listeners)
            stop_one()
            if was_open and not ear.listeners:
                self._forget(ear)

        return stop

    def stop(self) -> None:
        for ear in self._ears.by_loop.values():
            self._forget(ear)

    def _ear(self) -> LoopListener:
        loop = asyncio.get_running_loop()
        if ear := self._ears.by_loop.get(loop):
            return ear
        ear = LoopListener(loop, self._clock)
        self._ears.add(ear)
        self._write("add_listener", {"address": ear.address, "place": place()})
        return ear

    def _forget(self, ear: LoopListener) -> None:
        self._ears.remove(ear)
        ear.stop()
        self._write("drop_listener", {"address": ear.address})

    def _write(self, name: str, row: Params) -> None:
        """Have a statement run that only serves hints: it may fail unheard."""
        if writer := self._writer():
            future = writer.submit(do_works, [lambda desk: desk.db.run(name, row)])
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
