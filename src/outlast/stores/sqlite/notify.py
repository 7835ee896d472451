"""Results and hints for event loops: within the process by one wake-up, beyond it by datagrams.

The store's threads hand their results to the loops that wait for them, many with one wake-up, and
with them the hints that something was written (`resolve`).

Hints may be lost, and nothing depends on them: a reader or worker that waits also polls. A line
of a datagram is 1 or 0 (whether something arrived or a lane was given back) and a session's id.
The addresses of listeners are rows of the file, written by `writer.py` like everything else. The
sockets are in a directory that only the store's own user can enter: no other user can send to them,
nor wait at the name of one whose process is dead.
"""

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from outlast.clock import Clock
from outlast.stores.fork import guard
from outlast.stores.listener import EVERYTHING, Heard, Listeners
from outlast.stores.lock_file import machine
from outlast.stores.sqlite.database import Database
from outlast.stores.sqlite.private import make_private_directory

Hints = Mapping[str, bool]
Loop = asyncio.AbstractEventLoop
Future = asyncio.Future[Any]

LONGEST = 4096
MOST_AT_ONCE = 300
REST = 0.1
"""Seconds for which a socket is left alone after so many hints at once: further ones wait in its
buffer, and a sender whose hint does not fit gives a general one later."""
ANYTHING: Hints = {EVERYTHING: True}
NUMBERS = count()  # tell this process's sockets apart, whatever its clock says


def to_datagram(hints: Hints) -> bytes:
    lines = "\n".join(f"{arrived:d}{session_id}" for session_id, arrived in hints.items())
    datagram = lines.encode()
    # More sessions than fit: a hint of nothing in particular makes everybody look.
    return datagram if len(datagram) <= LONGEST else b"1"


def from_datagram(datagram: bytes) -> Hints:
    """Read a datagram; one of an unknown form is a hint of nothing in particular."""
    lines = datagram.decode(errors="replace").splitlines()
    return {line[1:]: line[0] == "1" for line in lines if line[:1] in ("0", "1")} or ANYTHING


class LoopListener:
    """The listeners of one event loop, and the socket at which other processes reach them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, directory: Path) -> None:
        self.loop = loop
        self.listeners = Listeners()
        self._clock = clock
        self._directory = directory
        self._socket, self.address = bind(directory, clock)
        self._taken = 0
        self._taken_since = clock.monotonic()
        # A forked child would keep the socket open, and take hints that are meant for its parent.
        guard(self)
        loop.add_reader(self._socket, self._receive)

    def hear(self, hints: Hints) -> None:
        """Call the listeners. On the loop's thread only."""
        for session_id, arrived in hints.items():
            self.listeners.tell(session_id, arrived)

    def _receive(self) -> None:
        """Take everything that came: a socket holds few datagrams, and further ones are lost."""
        heard: dict[str, bool] = {}
        with suppress(OSError):
            for _ in range(self._room()):
                for session_id, arrived in from_datagram(self._socket.recv(2 * LONGEST)).items():
                    heard[session_id] = arrived or heard.get(session_id, False)
                self._taken += 1
        # A loop that is flooded with hints would do nothing else.
        if self._taken >= MOST_AT_ONCE:
            self.loop.remove_reader(self._socket)
            self.loop.call_later(REST, self._resume)
        self.hear(heard)

    def _room(self) -> int:
        """Return how many datagrams may be taken before the socket is left alone for a while."""
        now = self._clock.monotonic()
        if now - self._taken_since >= REST:
            self._taken, self._taken_since = 0, now
        return MOST_AT_ONCE - self._taken

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._taken, self._taken_since = 0, self._clock.monotonic()
            self.loop.add_reader(self._socket, self._receive)

    def stop(self) -> None:
        """Stop listening; may be called from any event loop."""
        self.listeners.clear()
        if asyncio.get_running_loop() is self.loop:
            self._close()
        else:
            with suppress(RuntimeError):  # that loop was closed, and its readers with it
                self.loop.call_soon_threadsafe(self._close)
                return
            self._close()

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            with suppress(RuntimeError):  # the loop was closed
                self.loop.remove_reader(self._socket)
            self.abandon()
        remove_socket(self._directory, self.address)

    def abandon(self) -> None:
        self._socket.close()


def bind(directory: Path, clock: Clock) -> tuple[socket.socket, str]:
    """Return a socket that can be sent to, and its address as it is registered.

    That is a name in the directory, or a path elsewhere where the directory cannot hold sockets.
    """
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    address = f"{os.getpid()}-{next(NUMBERS)}-{clock.token()}"
    with suppress(OSError):
        make_private_directory(directory)
        with reached(directory) as path_of:
            receiver.bind(path_of(address))
        return receiver, address
    address = str(Path(tempfile.mkdtemp(prefix="outlast-")) / "s")
    receiver.bind(address)
    return receiver, address


@contextmanager
def reached(directory: Path) -> Iterator[Callable[[str], str]]:
    """Give a function that turns addresses into paths, which must be short for a socket."""
    if sys.platform != "linux":
        yield lambda address: str(directory / address)
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield (
            lambda address: (
                address if address.startswith("/") else f"/proc/self/fd/{descriptor}/{address}"
            )
        )
    finally:
        os.close(descriptor)


def remove_socket(directory: Path, address: str) -> None:
    """Remove the file of a socket without a listener, and the directory that was its own."""
    with suppress(OSError):
        (directory / address).unlink(missing_ok=True)
        if address.startswith("/"):
            Path(address).parent.rmdir()


class LoopListeners:
    """A store's `LoopListener` of each event loop. The mapping is replaced, never changed."""

    def __init__(self) -> None:
        self.by_loop: Mapping[asyncio.AbstractEventLoop, LoopListener] = {}
        self.addresses: Collection[str] = ()

    def add(self, listener: LoopListener) -> None:
        self._replace({**self.by_loop, listener.loop: listener})

    def remove(self, listener: LoopListener) -> None:
        kept = {loop: other for loop, other in self.by_loop.items() if other is not listener}
        self._replace(kept)

    def _replace(self, by_loop: Mapping[asyncio.AbstractEventLoop, LoopListener]) -> None:
        self.by_loop = by_loop
        self.addresses = [listener.address for listener in by_loop.values()]


class ListenerSet:
    """The listeners of a store.

    Opens a socket with the first listener of an event loop, and closes it with the store: a writer
    that looks for addresses now and then would not know one that comes and goes with each wait.
    `write` runs a function that only serves hints: nothing waits for it, and it may fail.
    """

    def __init__(
        self,
        by_loop: LoopListeners,
        clock: Clock,
        directory: Path,
        write: Callable[[Callable[[Database], object]], None],
    ) -> None:
        self._by_loop = by_loop
        self._clock = clock
        self._directory = directory
        self._write = write

    def listen(self, heard: Heard, session_id: str) -> Callable[[], None]:
        """Call a listener from now on; return a function that stops it."""
        return self._open().listeners.add(heard, session_id)

    def stop(self) -> None:
        for listener in self._by_loop.by_loop.values():
            self._forget(listener)

    def _open(self) -> LoopListener:
        loop = asyncio.get_running_loop()
        if listener := self._by_loop.by_loop.get(loop):
            return listener
        for other in self._by_loop.by_loop.values():
            # Its loop was closed without a stop; the socket would stay for the life of the process.
            if other.loop.is_closed():
                self._forget(other)
        listener = LoopListener(loop, self._clock, self._directory)
        self._by_loop.add(listener)
        row = {"address": listener.address, "place": machine()}

        def register(db: Database) -> None:
            db.run("add_listener", row)
            # Others gave no hints before they knew this address, so look at everything once.
            db.tell(EVERYTHING, arrived=True)

        self._write(register)
        return listener

    def _forget(self, listener: LoopListener) -> None:
        self._by_loop.remove(listener)
        listener.stop()
        row = {"address": listener.address}
        self._write(lambda db: db.run("drop_listener", row))


class Notifier:
    """Tells the listeners of other processes. Used by the thread that holds the writer's lock."""

    def __init__(self, directory: Path, listeners: LoopListeners) -> None:
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._directory = directory
        self._listeners = listeners
        self._place = machine()
        self._addresses: list[str] = []
        self._gone: set[str] = set()
        self._behind: set[str] = set()

    def look(self, db: Database) -> None:
        """Read the addresses of other processes. Inside a transaction.

        At every write: it costs 2 µs, and a process that began to listen before this write is
        given its hint. One that begins after it looks for what was written before.
        """
        for address in self._gone:
            db.run("drop_listener", {"address": address})
            remove_socket(self._directory, address)
        self._gone.clear()
        own = self._listeners.addresses
        rows = db.all("listeners", {"place": self._place})
        # This process's own loops are woken directly.
        self._addresses = [address for (address,) in rows if address not in own]

    def send(self, hints: Hints) -> None:
        """Send hints to every other process; this store's own listeners were called."""
        # The usual case of one process costs nothing.
        if not self._addresses:
            return
        datagram = to_datagram(hints)
        try:
            with reached(self._directory) as path_of:
                for address in self._addresses:
                    if address not in self._gone:
                        message = b"1" if address in self._behind else datagram
                        self._send(address, path_of(address), message)
        except FileNotFoundError:  # without the directory there is no listener in it
            self._gone.update(self._addresses)
        except OSError:  # no descriptor is left: all of them get a general hint next time
            self._behind.update(self._addresses)

    def _send(self, address: str, path: str, datagram: bytes) -> None:
        """Send without waiting. A receiver with a full buffer gets a general hint next time."""
        try:
            self._sender.sendto(datagram, path)
        except (ConnectionRefusedError, FileNotFoundError):
            self._gone.add(address)
            self._behind.discard(address)
        except OSError:  # its buffer is full
            self._behind.add(address)
        else:
            self._behind.discard(address)

    def close(self) -> None:
        self._sender.close()


@dataclass(slots=True)
class PendingResult:
    """A pending result. `future` is None when the caller reads `result` itself or needs none."""

    future: Future | None
    result: Any = None
    error: BaseException | None = None


def make_future() -> Future:
    return asyncio.get_running_loop().create_future()


def resolve(
    answers: Sequence[PendingResult],
    listeners: Mapping[Loop, LoopListener] | None = None,
    hints: Hints | None = None,
    here: Loop | None = None,
) -> None:
    """Resolve the answers' futures and pass on the hints, each on its own event loop.

    `here` is the loop of this very thread, if there is one. Its futures are resolved at once, and
    the caller calls its listeners, after it has released the writer's lock.
    """
    by_loop: dict[Loop, list[PendingResult]] = {
        loop: [] for loop in listeners or () if loop is not here
    }
    for answer in answers:
        if answer.future:
            by_loop.setdefault(answer.future.get_loop(), []).append(answer)
    for loop, own in by_loop.items():
        if loop is here:
            wake(own)
            continue
        listener = listeners.get(loop) if listeners else None
        with suppress(RuntimeError):  # the loop was closed, and its waiters with it
            loop.call_soon_threadsafe(wake, own, listener, hints)


def wake(
    answers: Sequence[PendingResult],
    listener: LoopListener | None = None,
    hints: Hints | None = None,
) -> None:
    for answer in answers:
        future = answer.future
        if future is None or future.done():
            continue
        if answer.error:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.result)
    if listener and hints:
        listener.hear(hints)
