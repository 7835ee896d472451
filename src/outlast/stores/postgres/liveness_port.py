"""A port at which a worker answers observers on other hosts with its name, and how it is asked.

It proves one thing: a process that is gone refuses connections, one that lives accepts them, even
if it stands still. Every stranger gets the same line and is not listened to, and no connection is
kept: what a stranger can take is an answer every few milliseconds.
"""

import asyncio
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Literal

from outlast.core.setting import address_of
from outlast.errors import InvalidDefinition
from outlast.stores.fork import guard

Answer = Literal["answered", "refused", "unknown"]

GREETING = "outlast worker "
LONGEST = 1024
REST = 0.005
"""Between two answers: a flood of connections does not take the process's time."""
WAITING = 128
WAKE_AFTER = 5.0
TIMEOUT = 1.0


class LivenessPort:
    """Listens, and answers on a thread of its own: a blocked event loop is no death."""

    def __init__(self, worker: str, wanted: str) -> None:
        self._answer = f"{GREETING}{worker}\n".encode()
        self._is_closed = False
        host, port = address_of("liveness_address", wanted)
        try:
            self._socket = listen(host, port)
        except OSError as error:
            raise InvalidDefinition(
                f"liveness_address {wanted} cannot be listened on ({error.strerror or error}):"
                " choose an address of this host and a free port, or port 0 for any"
            ) from None
        self.is_everywhere = host in ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
        self.host, self.port = self._socket.getsockname()[:2]
        # In case closing the socket does not wake the thread, as it need not everywhere.
        self._socket.settimeout(WAKE_AFTER)
        guard(self)
        threading.Thread(target=self._serve, name="outlast liveness", daemon=True).start()

    def _serve(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError:  # it was closed, or there are no descriptors left for now
                time.sleep(REST)
                continue
            with connection, suppress(OSError):
                connection.settimeout(0)  # the line fits into the system's buffer
                connection.send(self._answer)
            time.sleep(REST)

    def close(self) -> None:
        """Refuse from now on."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def abandon(self) -> None:
        """Close the descriptor in a forked child; the parent goes on listening."""
        self._is_closed = True
        self._socket.close()


def listen(host: str, port: int) -> socket.socket:
    """Listen on one address; an empty host means all. No other process may share the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A worker that starts again takes its port at once. SO_REUSEPORT would let two share it,
        # and one answer for the other.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(WAITING)
    except BaseException:
        listening.close()
        raise
    return listening


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def local_host(descriptor: int) -> str:
    """Return the address by which this host reaches the other end of a connection."""
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            return str(connection.getsockname()[0])
    return socket.gethostname()


async def probe(address: str, worker: str) -> Answer:
    """Ask at an address for a worker. Only a refusal and the worker's own name mean something."""
    host, port = address_of("liveness_address", address)
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection(host, port, limit=LONGEST)
            said = await reader.readline()
    # The only evidence: the host is there, and no process has the port.
    except ConnectionRefusedError:
        return "refused"
    except (OSError, ValueError):  # too slow, unreachable, cut off, or too much said
        return "unknown"
    finally:
        if writer is not None:
            writer.transport.abort()
    # The port may be another worker's by now: that says nothing of the one that is asked for.
    return "answered" if said == f"{GREETING}{worker}\n".encode() else "unknown"
