"""A process that has imported everything, opened nothing, and forks one child per order.

Starting Python and importing outlast takes most of a second, a fork some milliseconds.
Orders come in as lines of JSON; out go the children's pids, exits and what they say.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import selectors
import signal
import sys
import traceback
from importlib import import_module
from typing import Any, NoReturn

import opentelemetry.metrics
import opentelemetry.trace  # noqa: F401 - else each child that needs it imports it

import outlast.integration.connection.connections  # noqa: F401

OUT = 1
JOBS = import_module(sys.argv[1]).JOBS


def tell(**news: Any) -> None:
    os.write(OUT, json.dumps(news).encode() + b"\n")


class SaidLogs(logging.Handler):
    """Passes on what a child logs, in its fixed phrases."""

    def emit(self, record: logging.LogRecord) -> None:
        tell(pid=os.getpid(), said=str(record.msg))


def run(order: dict[str, Any]) -> NoReturn:
    """Be the child: do the job and exit, whatever happens."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    logger = logging.getLogger("outlast")
    logger.addHandler(SaidLogs())
    logger.setLevel(logging.INFO)
    logger.propagate = False
    code = 1
    try:
        job = JOBS[order.pop("job")]
        asyncio.run(job(lambda said: tell(pid=os.getpid(), said=said), **order))
        code = 0
    except BaseException:  # noqa: BLE001 - printed, and told by the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def reap(living: set[int]) -> None:
    while living:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        living.discard(pid)
        tell(pid=pid, exit=os.waitstatus_to_exitcode(status))


def obey(order: dict[str, Any], living: set[int]) -> None:
    """Fork a child for a job, or send a signal to one that is not reaped: its pid is its own."""
    if "signal" in order:
        if order["pid"] in living:
            os.kill(order["pid"], order["signal"])
        return
    number = order.pop("number")
    pid = os.fork()
    if not pid:
        run(order)
    living.add(pid)
    tell(number=number, pid=pid)


def main() -> None:
    # Until a child is ready for it: a request to stop must not end it before its time.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    living: set[int] = set()
    unread = b""
    gc.freeze()  # else every child that collects would copy what was imported
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if woken in ready:
                os.read(woken, 4096)
                reap(living)
            if 0 not in ready:
                continue
            orders = os.read(0, 65536)
            if not orders:
                break
            *lines, unread = (unread + orders).split(b"\n")
            for line in lines:
                obey(json.loads(line), living)
    for pid in living:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
    sys.exit(0)
