"""The provider behind all models of a simulation: away now and then, each time in one way.

Owns when it is away, and the client through which every model is asked. Refuses to know what a
session makes of it: `check_provider.py` holds the logs against what is promised.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random

from msgspec import Struct

from outlast.agents.model.client import (
    AnswerCutOff,
    FinishedAnswer,
    ModelClient,
    ModelFailure,
    ModelPiece,
    ModelRequest,
)
from outlast.core.compaction import TOO_LONG
from outlast.core.record import Failure
from outlast.testing.simulation.history import FaultInjected, History, ProviderSpoke
from outlast.testing.simulation.random_context import as_counted, tokens_of

PROVIDER_AWAY = "PROVIDER_AWAY"
KINDS = ("fails", "blocks", "asks for patience", "cuts streams")
PAUSES = (5.0, 30.0, 90.0)
SPANS = (0.5, 5.0, 40.0, 200.0)
"""About how many seconds it is there, and away."""
RETRY_AFTER = (20, 120, 400)


class SimulatedOutage(Struct, frozen=True):
    """How the provider is away. `retry_after` is what it asks for, in milliseconds."""

    kind: str
    retry_after: int = 0


class ProviderAway(Exception):
    """The provider did not answer, or refused to."""

    def __init__(self, outage: SimulatedOutage) -> None:
        super().__init__(f"the provider {outage.kind}")
        self.outage = outage


class RequestTooLong(Exception):
    """A request has more tokens than the provider takes."""


class SimulatedProvider:
    """One provider for all. In some simulations it is never away.

    It refuses what has more tokens than its `window`.
    """

    def __init__(self, seed: int, history: History, window: int | None = None) -> None:
        self.outage: SimulatedOutage | None = None
        self.window = window
        self._history = history
        self._chance = Random(f"{seed}/provider")  # noqa: S311 - the same every time

    async def come_and_go(self) -> None:
        """Be away from time to time, until this is cancelled."""
        pause = self._chance.choice([*PAUSES, None])
        while pause:
            await asyncio.sleep(self._chance.uniform(0.0, 2 * pause))
            self.outage = outage = self._random_outage()
            self._history.note(FaultInjected, what=f"provider {outage.kind}")
            await asyncio.sleep(self._chance.uniform(0.0, 2 * self._chance.choice(SPANS)))
            self.mend()

    def _random_outage(self) -> SimulatedOutage:
        kind = self._chance.choice(KINDS)
        asked_for = 1000 * self._chance.choice(RETRY_AFTER) if kind == "asks for patience" else 0
        return SimulatedOutage(kind, asked_for)

    def mend(self) -> None:
        """Be there again."""
        if self.outage:
            self._history.note(FaultInjected, what="provider is back")
        self.outage = None

    def behind(self, client: ModelClient, agent: str = "") -> ModelClient:
        """Return a client of an agent's that meets this provider before the model."""
        return InterruptedClient(
            client, self, lambda: self._history.note(ProviderSpoke, agent=agent, model=client.name)
        )


class InterruptedClient:
    """A model that can be asked only while its provider is there."""

    def __init__(
        self, client: ModelClient, provider: SimulatedProvider, speak: Callable[[], None]
    ) -> None:
        self.name = client.name
        self.can_stream = getattr(client, "can_stream", True)
        self._client = client
        self._provider = provider
        self._speak = speak

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        self._refuse_if_away()
        self._refuse_if_too_long(request)
        answer = await self._client.request(request)
        self._cut_if_away(0)
        self._speak()
        return as_counted(answer, request)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        self._refuse_if_away()
        self._refuse_if_too_long(request)
        given = 0
        async for piece in self._client.stream(request):
            self._cut_if_away(0 if isinstance(piece, FinishedAnswer) else max(0, 2 - given))
            self._speak()
            yield as_counted(piece, request) if isinstance(piece, FinishedAnswer) else piece
            given += 1

    def _refuse_if_too_long(self, request: ModelRequest) -> None:
        window = self._provider.window
        if window is not None and (tokens := tokens_of(request)) > window:
            raise RequestTooLong(f"{tokens} tokens are more than {window}")

    def _refuse_if_away(self) -> None:
        outage = self._provider.outage
        if outage and outage.kind != "cuts streams":
            raise ProviderAway(outage)

    def _cut_if_away(self, left: int) -> None:
        """Break a stream off that has no piece left; one that began before the outage, too."""
        outage = self._provider.outage
        if outage and outage.kind != "blocks" and not left:
            raise AnswerCutOff("the provider cut the stream")

    def classify(self, error: Exception) -> ModelFailure:
        if isinstance(error, RequestTooLong):
            self._speak()
            return ModelFailure("recoverable", Failure(TOO_LONG, str(error)))
        if not isinstance(error, ProviderAway):
            meaning = self._client.classify(error)
            if meaning.kind in ("recoverable", "structural"):  # it did answer: no
                self._speak()
            return meaning
        failure, outage = Failure(PROVIDER_AWAY, str(error)), error.outage
        if outage.kind == "blocks":
            return ModelFailure("blocked", failure)
        return ModelFailure("transient", failure, outage.retry_after)

    async def close(self) -> None:
        await self._client.close()
