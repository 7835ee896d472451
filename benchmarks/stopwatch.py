"""Where the time goes: functions of Holdfast are timed from outside, for one run at a time.

A part's time is its own: what a timed function spends in another timed function counts for
the other. Nothing of this exists in the product.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

Target = tuple[Any, str]


class Stopwatch:
    """Seconds and calls of each part. Counts on all threads; additions are under the GIL."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._local = threading.local()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            inner = self._local.__dict__.setdefault("inner", [])
            inner.append(0.0)
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                self.seconds[part] += took - inner.pop()
                self.calls[part] += 1
                if inner:
                    inner[-1] += took

        return run


@contextmanager
def watch(parts: Mapping[str, tuple[Target, ...]]) -> Iterator[Stopwatch]:
    """Time the functions of each part while the block runs."""
    stopwatch = Stopwatch()
    with ExitStack() as stack:
        for part, targets in parts.items():
            for owner, name in targets:
                timed = stopwatch.timed(part, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, timed))
        yield stopwatch
