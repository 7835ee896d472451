"""Hints that something was written: within the process by a call, beyond it by datagrams.

Hints may be lost, and nothing depends on them: a reader or worker that waits also polls. A line
of a datagram is 1 or 0 (whether something arrived or a lane was given back) and a session's id.
The addresses of listeners are rows of the file, written by `writer.py` like everything else.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from outlast.clock import Clock
from outlast.stores.listener import Heard, Listeners
from outlast.stores.sqlite.database import Database, Params
from outlast.stores.sqlite.fork import guard
from outlast.stores.sqlite.liveness import machine

Hints = Mapping[str, bool]

LONGEST = 4096
LOOK_EVERY = 1.0
MOST_AT_ONCE = 100
NETWORK_NAMESPACE = "/proc/self/ns/net"
ANYTHING: Hints = {"": True}
NUMBERS = count()  # tell this process's sockets apart, whatever its clock says


def place() -> str:
    """Name the place from where sockets can be reached: a container has names of its own."""
    try:
        return f"{machine()} {os.readlink(NETWORK_NAMESPACE)}"
    except OSError:
        return machine()


def to_datagram(hints: Hints) -> bytes:
    lines = "\n".join(f"{arrived:d}{session_id}" for session_id, arrived in hints.items())
    datagram = lines.encode()
    return datagram if len(datagram) <= LONGEST else b"1"


def from_datagram(datagram: bytes) -> Hints:
    """Read a datagram; one of an unknown form is a hint of nothing in particular."""
    lines = datagram.decode(errors="replace").splitlines()
    return {line[1:]: line[0] == "1" for line in lines if line[:1] in ("0", "1")} or ANYTHING


class LoopListener:
    """The listeners of one event loop, and the socket at which other processes reach them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.loop = loop
        self.listeners = Listeners()
        self._socket, self.address = bind(clock)
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
            for _ in range(MOST_AT_ONCE):
                for session_id, arrived in from_datagram(self._socket.recv(2 * LONGEST)).items():
                    heard[session_id] = arrived or heard.get(session_id, False)
        self.hear(heard)

    def stop(self) -> None:
        """Stop listening; may be called from any event loop."""
        self.listeners.clear()
        if asyncio.get_running_loop() is self.loop:
            self._close()
        else:
            with suppress(RuntimeError):  # that loop was closed, and its readers with it
                self.loop.call_soon_threadsafe(self._close)

    def _close(self) -> None:
        if self._socket.fileno() >= 0:
            self.loop.remove_reader(self._socket)
            self.abandon()
        if self.address.startswith("/"):
            Path(self.address).unlink(missing_ok=True)
            Path(self.address).parent.rmdir()

    def abandon(self) -> None:
        self._socket.close()


def bind(clock: Clock) -> tuple[socket.socket, str]:
    """Return a socket that can be sent to, and its address as it is registered."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    if sys.platform != "linux":
        address = str(Path(tempfile.mkdtemp(prefix="hf")) / "s")
        receiver.bind(address)
        return receiver, address
    address = f"@outlast-{os.getpid()}-{next(NUMBERS)}-{clock.token()}"
    receiver.bind(to_name(address))
    return receiver, address


def to_name(address: str) -> str:
    """Return an address as the system wants it; one that begins with @ is in no directory."""
    return "\0" + address[1:] if address.startswith("@") else address


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

    Opens a socket with the first listener of an event loop and closes it with the last. `write`
    runs a statement that only serves hints: nothing waits for it, and it may fail.
    """

    def __init__(
        self, by_loop: LoopListeners, clock: Clock, write: Callable[[str, Params], None]
    ) -> None:
        self._by_loop = by_loop
        self._clock = clock
        self._write = write

    def listen(self, heard: Heard, session_id: str) -> Callable[[], None]:
        """Call a listener from now on; return a function that stops it."""
        listener = self._open()
        stop_one = listener.listeners.add(heard, session_id)

        def stop() -> None:
            was_open = bool(listener.listeners)
            stop_one()
            if was_open and not listener.listeners:
                self._forget(listener)

        return stop

    def stop(self) -> None:
        for listener in self._by_loop.by_loop.values():
            self._forget(listener)

    def _open(self) -> LoopListener:
        loop = asyncio.get_running_loop()
        if listener := self._by_loop.by_loop.get(loop):
            return listener
        listener = LoopListener(loop, self._clock)
        self._by_loop.add(listener)
        self._write("add_listener", {"address": listener.address, "place": place()})
        return listener

    def _forget(self, listener: LoopListener) -> None:
        self._by_loop.remove(listener)
        listener.stop()
        self._write("drop_listener", {"address": listener.address})


class Notifier:
    """Tells the listeners of other processes. Used by the thread that holds the writer's lock."""

    def __init__(self, clock: Clock) -> None:
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._clock = clock
        self._place = place()
        self._addresses: list[str] = []
        self._looked_at = float("-inf")
        self._gone: set[str] = set()
        self._behind: set[str] = set()

    def look(self, db: Database, own: Collection[str]) -> None:
        """Read the addresses of other processes, once a second at most. Inside a transaction."""
        for address in self._gone:
            db.run("drop_listener", {"address": address})
        now = self._clock.monotonic()
        if self._gone or now - self._looked_at >= LOOK_EVERY:
            self._gone.clear()
            self._looked_at = now
            rows = db.all("listeners", {"place": self._place})
            self._addresses = [address for (address,) in rows if address not in own]

    def send(self, hints: Hints) -> None:
        """Send hints to every other process; this store's own listeners were called."""
        if not self._addresses:
            return
        datagram = to_datagram(hints)
        for address in self._addresses:
            if address not in self._gone:
                self._send(address, b"1" if address in self._behind else datagram)

    def _send(self, address: str, datagram: bytes) -> None:
        """Send without waiting. A receiver with a full buffer gets a general hint next time."""
        try:
            self._sender.sendto(datagram, to_name(address))
        except (ConnectionRefusedError, FileNotFoundError):
            self._gone.add(address)
            self._behind.discard(address)
        except OSError:  # its buffer is full
            self._behind.add(address)
        else:
            self._behind.discard(address)

    def close(self) -> None:
        self._sender.close()
