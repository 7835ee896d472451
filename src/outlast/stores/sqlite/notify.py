"""Hints that something was written: within the process by a call, beyond it by datagrams.

They may be lost, and nothing depends on them: beneath, whoever waits polls. A line of a
datagram is 1 or 0 (whether something arrived or was given back) and a session's id.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from outlast.clock import Clock
from outlast.stores.listener import Listeners
from outlast.stores.sqlite.database import Database
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
    """Read a datagram; one that nobody of ours has sent is a hint of nothing in particular."""
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
        """Take all that came: few datagrams fit into a socket, and whose does not is lost."""
        heard: dict[str, bool] = {}
        with suppress(OSError):
            for _ in range(MOST_AT_ONCE):
                for session_id, arrived in from_datagram(self._socket.recv(2 * LONGEST)).items():
                    heard[session_id] = arrived or heard.get(session_id, False)
        self.hear(heard)

    def stop(self) -> None:
        """Stop hearing, from whichever event loop."""
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
    """The ears of a store, one for each event loop. The mapping is replaced, never changed."""

    def __init__(self) -> None:
        self.by_loop: Mapping[asyncio.AbstractEventLoop, LoopListener] = {}
        self.addresses: Collection[str] = ()

    def add(self, ear: LoopListener) -> None:
        self._replace({**self.by_loop, ear.loop: ear})

    def remove(self, ear: LoopListener) -> None:
        self._replace({loop: e for loop, e in self.by_loop.items() if e is not ear})

    def _replace(self, by_loop: Mapping[asyncio.AbstractEventLoop, LoopListener]) -> None:
        self.by_loop = by_loop
        self.addresses = [ear.address for ear in by_loop.values()]


class Notifier:
    """Tells the listeners of other stores. Used by whoever has the writer's turn."""

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
        """Learn who listens in other stores, once a second at most. Inside a transaction."""
        for address in self._gone:
            db.run("drop_listener", {"address": address})
        now = self._clock.monotonic()
        if self._gone or now - self._looked_at >= LOOK_EVERY:
            self._gone.clear()
            self._looked_at = now
            rows = db.all("listeners", {"place": self._place})
            self._addresses = [address for (address,) in rows if address not in own]

    def send(self, hints: Hints) -> None:
        """Tell all who listen; those of this store know."""
        if not self._addresses:
            return
        datagram = to_datagram(hints)
        for address in self._addresses:
            if address not in self._gone:
                self._send(address, b"1" if address in self._behind else datagram)

    def _send(self, address: str, datagram: bytes) -> None:
        """Send without waiting. Who could not take a hint gets a general one the next time."""
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
