"""Sees a body that waits for something that its context knows nothing of.

Such a wait is lost with its worker, and is begun anew each time that the body runs. While a body
runs it is looked at once a second, and not at its steps: what awaits something within Outlast waits
through its context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from outlast.agents.runtime.durable_wait import WaitTracker
from outlast.log_context import get_logger

log = get_logger("outlast.workflows")

INTERVAL = 1.0
OURS = str(Path(__file__).parents[1])
CALLERS = ("body.py", "branch.py")
"""The modules that call a body and its branches; what others of Outlast call is in a step."""

_named: set[tuple[CodeType, int]] = set()
"""The places that a warning has named, in this process."""


class BodyWatch:
    """Looks at one run of a body, its own task and those of its branches, from now until `end`."""

    def __init__(self, name: str, waiting: WaitTracker) -> None:
        self._name = name
        self._waiting = waiting
        self._loop = asyncio.get_running_loop()
        self._places: list[tuple[CodeType, int]] = []
        self._timer = self._loop.call_later(INTERVAL, self._look)

    def end(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        before = self._places
        self._places = [place for task in self._waiting.tasks if (place := alien_wait(task))]
        for place in self._places:
            if place in before and place not in _named:  # it has waited for a while
                self._name_it(*place)
        self._timer = self._loop.call_later(INTERVAL, self._look)

    def _name_it(self, code: CodeType, line: int) -> None:
        _named.add((code, line))
        log.warning(
            "the body of the workflow %s waits at %s:%d for something that its context knows"
            " nothing of: it is begun anew each time that the body runs; use ctx.sleep for a time,"
            " and ctx.step for all else",
            self._name,
            code.co_filename,
            line,
            extra={"workflow": self._name},
        )


def alien_wait(task: asyncio.Task[Any]) -> tuple[CodeType, int] | None:
    """Return the place in a body or branch that waits; None if that is a step or a durable wait."""
    place, caller = None, ""
    for frame in frames_of(task.get_coro()):
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            if place:
                return None
            caller = file
        elif not caller.endswith(CALLERS):
            return None
        elif place is None or is_users(frame):
            place = (frame.f_code, frame.f_lineno)
    return place


def is_users(frame: FrameType) -> bool:
    """Whether this is code of the app, and none that was installed."""
    return "asyncio" not in frame.f_code.co_filename and "-packages" not in frame.f_code.co_filename


def frames_of(awaited: Any) -> Iterator[FrameType]:
    """Return the frames of a chain of coroutines and generators, the outermost first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
