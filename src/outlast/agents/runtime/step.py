"""What the steps of one run of a tool are called, so that the next run finds each again.

A step of a name that has returned before in this run is another step: a loop may use one name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlast.errors import InvalidInput


class Steps:
    """The steps of one run by name: how many have returned, and which task was at the last."""

    def __init__(self) -> None:
        self._main = asyncio.current_task()
        self._returned: dict[str, int] = {}
        self._begun_by: dict[str, asyncio.Task[Any] | None] = {}
        self._open: set[str] = set()

    @contextmanager
    def next(self, name: str, of: str) -> Iterator[str]:
        """Give the step that is done meanwhile the key under which its result is kept.

        One that raises has not happened: the next of its name is the same step again. `of` says
        whose steps these are: what finds out about the tool has its own.
        """
        name = f"{of}{name}"
        self._check_alone(name)
        before = self._returned.get(name, 0)
        self._begun_by[name] = asyncio.current_task()
        self._open.add(name)
        try:
            yield f"step{before + 1}:{name}" if before else f"step:{name}"
            self._returned[name] = before + 1
        finally:
            self._open.discard(name)

    def _check_alone(self, name: str) -> None:
        """Refuse what another run might come to in another order."""
        other = self._begun_by.get(name)
        is_other = other not in (None, self._main, asyncio.current_task())
        if name in self._open or (other and is_other and not other.done()):
            raise InvalidInput(
                f"two steps are done at once under one name, {name!r}, and could not be told apart"
                " when the call is run again: name them apart"
            )
