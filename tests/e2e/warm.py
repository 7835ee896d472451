"""The executable, kept warm: a process that has imported it and forks one child per command.

Starting Python and importing the command line takes most of a second, a fork some
milliseconds. Run as a program this is that process. An order is one message: the command, its
directory and its environment, and with them the child's three streams and where to tell its
exit code.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

TIMEOUT = 60
LONGEST = 2**17
PIPEFUL = 2**16


class Warm:
    """Runs commands to their end."""

    def __init__(self) -> None:
        self._way, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])

    def run(
        self, command: Sequence[str], say: str, path: Path, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """Run a command whose lines come through a pipe; return its exit and what it printed."""
        said = say.encode()
        assert len(said) < PIPEFUL
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8") as out,
            tempfile.TemporaryFile("w+", encoding="utf-8") as err,
        ):
            listening, speaking = os.pipe()
            ending, exiting = os.pipe()
            os.write(speaking, said)
            os.close(speaking)
            order = {"command": command, "path": str(path), "environment": dict(environment)}
            streams = [listening, out.fileno(), err.fileno(), exiting]
            socket.send_fds(self._way, [json.dumps(order).encode()], streams)
            os.close(listening)
            os.close(exiting)
            ended, _, _ = select.select([ending], [], [], TIMEOUT)
            assert ended, f"{command} has not ended"
            code = int(os.read(ending, 16))
            os.close(ending)
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(command, code, out.read(), err.read())

    def stop(self) -> None:
        self._way.close()
        self._process.wait()


@cache
def warm() -> Warm:
    """The one of this process, for as long as it lives."""
    found = Warm()
    atexit.register(found.stop)
    return found


def await_order(way: socket.socket) -> dict[str, Any]:
    """Be forked for each order, and return it in the child that is to follow it."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(way, LONGEST, 4)
        if not message:
            sys.exit()
        *streams, exiting = descriptors
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            way.close()
            if (child := os.fork()) == 0:
                os.close(exiting)
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                order: dict[str, Any] = json.loads(message)
                return order
            tell_exit(child, exiting)
        for descriptor in descriptors:
            os.close(descriptor)


def tell_exit(child: int, to: int) -> None:
    """Wait for a child, say how it ended, and end."""
    _, status = os.waitpid(child, 0)
    os.write(to, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


if __name__ == "__main__":
    from outlast.cli import main

    gc.freeze()  # else every child that collects would copy what was imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait
    order = await_order(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(order["path"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    main()
    sys.exit()
