"""Descriptors that a forked child must close at once: locks and sockets that say "I am alive".

A lock taken with `flock` belongs to all processes that share its descriptor. If a child kept
it, the death of its parent could not be seen.
"""

import os
from typing import Protocol
from weakref import WeakSet

from outlast.errors import UsedAfterFork


class ForkGuarded(Protocol):
    """Holds a descriptor that is this process's alone."""

    def abandon(self) -> None:
        """Close the descriptor in a child, where it means nothing."""
        ...


_guarded: WeakSet[ForkGuarded] = WeakSet()


def guard(holder: ForkGuarded) -> None:
    """Have the holder abandon its descriptor in every child that is forked from now on."""
    _guarded.add(holder)


_pid = os.getpid()


def _abandon_all() -> None:
    global _pid
    _pid = os.getpid()
    for holder in list(_guarded):
        holder.abandon()
    _guarded.clear()


os.register_at_fork(after_in_child=_abandon_all)


def check_process(pid: int) -> None:
    """Refuse to go on in another process than the one that opened the store."""
    if _pid != pid:  # known from the fork: asking the system costs more than the rest
        raise UsedAfterFork(
            "this store was opened before a fork, and SQLite's connections do not survive one;"
            " open a store of its own in each process"
        )
