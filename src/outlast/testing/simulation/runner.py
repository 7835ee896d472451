"""The users of a simulation of workflows: they start, retry and cancel runs, and talk to them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Any

from outlast.app import Outlast
from outlast.errors import InvalidAnswer, NothingToRetry, RequestClosed, SessionOver
from outlast.session.run import Run
from outlast.testing.simulation.history import History, UnexpectedError, UserAsked
from outlast.testing.simulation.random_workflow import EVENT
from outlast.testing.simulation.user import insist, random_answer

NO = (InvalidAnswer, NothingToRetry, RequestClosed, SessionOver)
"""Refusals that a user may meet."""
FOR_ALL = -1
"""The payload of an event by which a run is helped to its end."""


class SimulatedRunner:
    """A user with a few runs of one workflow."""

    def __init__(self, name: str, app: Outlast, history: History, chance: Random) -> None:
        self.name = name
        self._app = app
        self._history = history
        self._chance = chance
        self._runs: list[Run[Any]] = []
        self._started: list[tuple[int, str]] = []
        self._said = 0

    async def live(self, moments: int) -> None:
        """Do one thing after the other, with pauses."""
        acts = [self._start, self._start, self._start_again, *[self._send_event] * 6]
        acts += [*[self._answer] * 6, self._cancel, self._retry, self._retry]
        await self._start()
        for _ in range(moments):
            await asyncio.sleep(self._chance.choice([0.0, 0.1, 1.0, 5.0, 20.0]))
            try:
                await self._chance.choice(acts)()
            except NO as refusal:
                self._history.note(UserAsked, what=f"refused: {refusal.code}", session_id="")

    def _next(self) -> int:
        self._said += 1
        return self._said

    async def _start(self) -> None:
        number = self._next()
        dispatch = f"{self.name}-{number}"
        seconds = self._chance.choice([*[0] * 8, 5, 60])
        deadline = timedelta(seconds=seconds) if seconds else None

        async def start() -> Run[Any]:
            return await self._app.run(
                "program",
                number,
                dispatch_id=dispatch,
                deadline=deadline,
                tags={"start": dispatch},
            )

        self._runs.append(await insist(start))
        if deadline is None:
            self._started.append((number, dispatch))

    async def _start_again(self) -> None:
        """A double click: the first run comes back."""
        if self._started:
            number, dispatch = self._chance.choice(self._started)
            tags = {"start": dispatch}
            again = await insist(
                lambda: self._app.run("program", number, dispatch_id=dispatch, tags=tags)
            )
            if again.id not in [run.id for run in self._runs]:
                self._history.note(UnexpectedError, what=f"{dispatch} started a second run")

    async def _send_event(self) -> None:
        run, number = self._chance.choice(self._runs), self._next()
        await insist(lambda: run.send_event(EVENT, number, dispatch_id=f"{self.name}-{number}"))

    async def _answer(self) -> None:
        run = self._chance.choice(self._runs)
        for request in await insist(run.requests):
            option, text, _ = random_answer(self._chance, request)
            said = f"{self.name}-{self._next()}"
            await insist(
                lambda: run.answer(request.request_id, option, text=text, dispatch_id=said)  # noqa: B023
            )

    async def _cancel(self) -> None:
        run = self._chance.choice(self._runs)
        self._history.note(UserAsked, what="cancel", session_id=run.id)
        await insist(lambda: run.cancel("changed my mind"))

    async def _retry(self) -> None:
        run, said = self._chance.choice(self._runs), f"{self.name}-{self._next()}"
        self._runs.append(await insist(lambda: run.retry(dispatch_id=said)))
