"""Named versions of the code in some simulations, and the operator who promotes and retires them.

What is drawn here is drawn from seeds of its own: in a simulation without deployments nothing is
changed by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from outlast.engine.pin import PinScope
from outlast.engine.settings import WorkerSettings
from outlast.store import Store
from outlast.testing.simulation.history import (
    DeploymentPromoted,
    DeploymentRetired,
    History,
    WorkerStarted,
)
from outlast.testing.simulation.random_answer import chance_of

NAMES = ("v1", "v2", "v3")
SHARE = 0.3
"""Of the simulations whose workers have named deployments."""


class RandomDeployments:
    """Says which version each worker runs, and has an operator change which is current."""

    def __init__(self, seed: int, store: Store, history: History, *, wanted: bool) -> None:
        chance = chance_of(seed, "deployments")
        self._seed = seed
        self._is_there = wanted and chance.random() < SHARE
        self._scope: PinScope = chance.choice(["turn", "turn", "session"])
        self._chance: Random = chance
        self._store = store
        self._history = history

    def settings(self, common: WorkerSettings, worker: str) -> WorkerSettings:
        """Return the settings of one worker."""
        return replace(common, deployment=self.of(worker), pin=self._scope)

    def of(self, worker: str) -> str:
        """Return the version that a worker runs."""
        if not self._is_there:
            return ""
        return chance_of(self._seed, worker, "deployment").choice(NAMES)

    async def change_repeatedly(self) -> None:
        """Promote one now and then, or retire one to another."""
        while self._is_there:
            await asyncio.sleep(self._chance.uniform(2.0, 40.0))
            known = [each.name for each in await self._store.work.deployments()]
            if len(known) < 2:
                continue
            one, other = self._chance.sample(known, 2)
            if self._chance.random() < 0.5:
                await self._promote(one)
            else:
                await self._retire(one, other)

    async def settle(self, living: Sequence[str]) -> None:
        """Have all go on with a version that some living worker runs."""
        while self._is_there:
            ready = {note.worker for note in self._history.of(WorkerStarted) if note.is_ready}
            if there := [self.of(worker) for worker in living if worker in ready]:
                await self._promote(there[0])
                for each in await self._store.work.deployments():
                    if each.name != there[0]:
                        await self._retire(each.name, there[0])
                return
            await asyncio.sleep(1.0)

    async def _promote(self, name: str) -> None:
        self._history.note(DeploymentPromoted, name=name)
        await self._store.work.promote(name)

    async def _retire(self, name: str, to: str) -> None:
        await self._store.work.retire(name, to)
        found = {each.name: each for each in await self._store.work.deployments()}
        left = found[name].turns + found[name].sessions
        self._history.note(DeploymentRetired, name=name, to=to, left=left)
