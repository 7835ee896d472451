"""Where the time goes: functions of Outlast are timed from outside, for one run at a time.

A part's time is its own: what a timed function spends in another timed function counts for
the other. Nothing of this exists in the product.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Target = tuple[Any, str]
Parts = Mapping[str, tuple[Target, ...]]


class Stopwatch:
    """For each part: seconds of CPU, seconds by the clock, and calls. Counts on all threads."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self.wall: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._local = threading.local()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            inner = self._local.__dict__.setdefault("inner", [])
            inner.append((0.0, 0.0))
            cpu, wall = time.thread_time(), time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
                others_cpu, others_wall = inner.pop()
                self.cpu[part] += cpu - others_cpu
                self.wall[part] += wall - others_wall
                self.calls[part] += 1
                if inner:
                    inner[-1] = (inner[-1][0] + cpu, inner[-1][1] + wall)

        return run


@contextmanager
def watch(parts: Parts) -> Iterator[Stopwatch]:
    """Time the functions of each part while the block runs."""
    stopwatch = Stopwatch()
    with ExitStack() as stack:
        for part, targets in parts.items():
            for owner, name in targets:
                timed = stopwatch.timed(part, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
        yield stopwatch
