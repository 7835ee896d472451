"""Descriptors that a forked child must close at once: locks and sockets that say "I am alive".

A lock taken with `flock`, and a port that is listened on, belong to all processes that share the
descriptor. If a child kept one, the death of its parent could not be seen.
"""

import os
from typing import Protocol
from weakref import WeakSet


class DescriptorHolder(Protocol):
    """Holds a descriptor that is this process's alone."""

    def abandon(self) -> None:
        """Close the descriptor in a child, where it means nothing."""
        ...


_guarded: WeakSet[DescriptorHolder] = WeakSet()


def guard(holder: DescriptorHolder) -> None:
    """Have the holder abandon its descriptor in every child that is forked from now on."""
    _guarded.add(holder)


def _abandon_all() -> None:
    for holder in list(_guarded):
        holder.abandon()
    _guarded.clear()


os.register_at_fork(after_in_child=_abandon_all)
