"""An event loop for tests: what the machine takes from it counts against no timeout."""

from __future__ import annotations

import asyncio
import time
from selectors import DefaultSelector, SelectorKey

MOST_WORK = 0.001
"""How many seconds of the loop's time a round of callbacks takes at most, however long it lasts."""


class PatientSelector(DefaultSelector):
    """Keeps the time of a loop, which passes while the loop has nothing to do.

    A process that stands still for seconds wakes up in the instant in which it fell asleep, or
    in that of its next timer: whatever came meanwhile has come in time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._woke_at = time.monotonic()
        self._now = self._woke_at

    def now(self) -> float:
        return self._now + min(time.monotonic() - self._woke_at, MOST_WORK)

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        self._now = self.now()
        began = time.monotonic()
        ready = super().select(timeout)
        self._woke_at = time.monotonic()
        waited = self._woke_at - began
        self._now += waited if timeout is None else min(waited, max(timeout, 0.0))
        return ready


class PatientLoop(asyncio.SelectorEventLoop):
    """A real loop with real sockets, threads and signals, and a patient clock."""

    def __init__(self) -> None:
        self._patient = PatientSelector()
        super().__init__(self._patient)

    def time(self) -> float:
        return self._patient.now()
