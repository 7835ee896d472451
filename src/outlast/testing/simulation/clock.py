"""Clocks that follow a simulation's time, each in its own way."""

from outlast.testing.clock import START, ManualClock
from outlast.testing.simulation.loop import VirtualLoop


class VirtualClock(ManualClock):
    """A process's clock: the loop's time plus an offset. Spans are always exact."""

    def __init__(self, loop: VirtualLoop, seed: str) -> None:
        super().__init__(seed=seed)  # type: ignore[arg-type] # chance takes any text as a seed
        self._loop = loop
        self.ahead = 0

    def now(self) -> int:
        self._now = START + int(self._loop.time() * 1000) + self.ahead
        return self._now

    def monotonic(self) -> float:
        return self._loop.time()

    def new_id(self, prefix: str) -> str:
        self.now()
        return super().new_id(prefix)

    def jump(self, milliseconds: int) -> None:
        """Be ahead by so much more, or less."""
        self.ahead += milliseconds
