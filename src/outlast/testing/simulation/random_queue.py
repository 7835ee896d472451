"""A queue in which some simulated sessions stand, and the operator who changes its settings.

What is drawn here is drawn from seeds of its own: another act of a user changes nothing of it.
"""

import asyncio

from outlast.core.queue import QueueSettings
from outlast.session.queue import QueueControl, QueueEntry
from outlast.store import Store
from outlast.testing.simulation.history import History, QueueChanged
from outlast.testing.simulation.random_answer import chance_of

QUEUE = "reports"


def random_place(dispatch: str) -> QueueEntry | None:
    """Return where a session stands that is started so; most stand in no queue."""
    chance = chance_of(dispatch, "queue")
    if chance.random() < 0.6:
        return None
    return QueueEntry(
        QUEUE,
        key=chance.choice(["", "", "one", "two"]),
        priority=chance.choice([None, None, -30, 30, 600]),
        delay=chance.choice([None, None, None, 3.0]),
    )


class QueueOperator:
    """Changes the settings of the queue while all runs."""

    def __init__(self, seed: int, store: Store, history: History) -> None:
        self._chance = chance_of(seed, "operator")
        self._queues = QueueControl(store)
        self._history = history

    async def set_up(self) -> None:
        await self._change()

    async def change_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(2.0, 40.0))
            await self._change()

    async def _change(self) -> None:
        chance = self._chance
        settings = QueueSettings(
            concurrency=chance.choice([0, 1, 2, 4]),
            per_worker=chance.choice([0, 0, 1, 3]),
            per_key=chance.choice([0, 1, 2]),
            rate=chance.choice([0, 0, 5]),
            per=10.0,
            priority=chance.choice([0, 5]),
        )
        # Before it is written: a turn may ask by it before those that wait are told.
        self._history.note(QueueChanged, queue=QUEUE, settings=settings)
        await self._queues.set(
            QUEUE,
            concurrency=settings.concurrency,
            per_worker=settings.per_worker,
            per_key=settings.per_key,
            rate=settings.rate,
            per=settings.per,
            priority=settings.priority,
        )
