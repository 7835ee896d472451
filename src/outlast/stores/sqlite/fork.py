"""A store belongs to the process that opened it: SQLite's connections do not survive a fork."""

import os

from outlast.errors import UsedAfterFork

_pid = os.getpid()


def _note_child() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_note_child)


def check_process(pid: int) -> None:
    """Refuse to go on in another process than the one that opened the store."""
    if _pid != pid:  # known from the fork: asking the system costs more than the rest
        raise UsedAfterFork(
            "this store was opened before a fork, and SQLite's connections do not survive one;"
            " open a store of its own in each process"
        )
