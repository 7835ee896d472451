"""A model that costs next to nothing, so that what is measured is Outlast.

It answers at once, or after a delay, or piece by piece; what it says is a function of the
number of messages so far.
"""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import AsyncIterator, Callable

import msgspec
from msgspec import Struct

from outlast.agents.model.client import (
    FinishedAnswer,
    ModelFailure,
    ModelPiece,
    ModelRequest,
    TextPiece,
)
from outlast.core.message import Part, Text, ToolCall
from outlast.core.record import Failure

# Without what JSON would write with two characters.
LETTERS = "".join(
    sorted(set(string.digits + string.ascii_letters + string.punctuation + " ") - set('"\\'))
)


class Saying(Struct, frozen=True):
    """What the model says next: a text in some pieces, and a tool to call with a number."""

    text: str
    tool: str = ""
    number: int = 0
    pieces: tuple[str, ...] = ()


class Model:
    """A ModelClient. Streams a saying's pieces `pace` seconds apart; the rest is not streamed."""

    name = "benchmark"

    def __init__(
        self, say: Callable[[int], Saying], *, delay: float = 0.0, pace: float = 0.0
    ) -> None:
        self._say = say
        self._delay = delay
        self._pace = pace

    async def request(self, request: ModelRequest) -> FinishedAnswer:
        if self._delay:
            await asyncio.sleep(self._delay)
        return whole(self._say(len(request.view.messages)))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        if self._delay:
            await asyncio.sleep(self._delay)
        saying = self._say(len(request.view.messages))
        for piece in saying.pieces:
            yield TextPiece(0, piece)
            if self._pace:
                await asyncio.sleep(self._pace)
        yield whole(saying)

    async def close(self) -> None:
        """Nothing is held."""

    def classify(self, error: Exception) -> ModelFailure:
        return ModelFailure("structural", Failure("BENCHMARK", repr(error)))


def whole(saying: Saying) -> FinishedAnswer:
    parts: list[Part] = [Text(saying.text)]
    if saying.tool:
        args = msgspec.json.encode({"number": saying.number}).decode()
        parts.append(ToolCall("", saying.tool, args))
    return FinishedAnswer(tuple(parts))


def texts(size: int, count: int = 64) -> list[str]:
    """Return texts of random characters: no text compresses less."""
    chance = random.Random(size)  # noqa: S311 - the same in every run
    return ["".join(chance.choices(LETTERS, k=size)) for _ in range(count)]
