"""How often a worker asks which budgets there are."""

from __future__ import annotations

import asyncio
from typing import Any

from outlast.engine.budget_gate import BudgetDirectory
from outlast.stores.sqlite import MemoryStore
from outlast.testing.clock import ManualClock
from outlast.testing.wrapped_store import WrappedStore


class SlowStore(WrappedStore):
    """A store that takes five seconds to say which budgets there are."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(MemoryStore(clock))
        self._clock = clock
        self.asked = 0

    async def newest_budget(self) -> int:
        self.asked += 1
        await asyncio.sleep(0)
        self._clock.advance(5_000)
        return await super().newest_budget()


def directory(**given: Any) -> tuple[BudgetDirectory, SlowStore]:
    clock = ManualClock()
    store = SlowStore(clock)
    return BudgetDirectory(store, clock, lambda: given.get("is_idle", False)), store


async def test_a_slow_store_is_asked_for_all_lanes_at_once() -> None:
    budgets, store = directory()
    await asyncio.gather(*(budgets.renew() for _ in range(100)))
    assert store.asked <= 2


async def test_an_idle_worker_asks_nothing() -> None:
    budgets, store = directory(is_idle=True)
    await budgets.run_once()
    assert (store.asked, budgets.is_old) == (0, True)
