"""Connections that a forked child must give up at once, as they say "this process is alive".

A connection belongs to all processes that share its descriptor. If a child kept one, the server
would not see its parent die; if it closed one in order, it would close it for both.
"""

import os
from weakref import WeakSet

import psycopg
from psycopg.pq.abc import PGconn

from outlast.errors import UsedAfterFork


class ForkGuarded:
    """A connection in a weak set: listed here, but not kept alive by that."""

    def __init__(self, connection: PGconn) -> None:
        self.connection = connection
        _guarded.add(self)


_guarded: WeakSet[ForkGuarded] = WeakSet()


def _abandon_all() -> None:
    """Replace each socket by /dev/null, so that no other file gets its number."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for holder in list(_guarded):
        try:
            os.dup2(nothing, holder.connection.socket, inheritable=False)
        except (OSError, psycopg.Error):  # it was closed already
            continue
    os.close(nothing)
    _guarded.clear()


os.register_at_fork(after_in_child=_abandon_all)


def check_process(pid: int) -> None:
    """Refuse to go on in another process than the one that opened the store."""
    if os.getpid() != pid:
        raise UsedAfterFork(
            "this store was opened before a fork, and its connections are the parent's;"
            " open a store of its own in each process"
        )
