"""Random answers of models: calls, text and reasoning, whole, streamed or cut off."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from outlast.agents.model.client import ModelRequest
from outlast.agents.validation import OUTPUT_TOOL
from outlast.core.message import UserMessage, text_of
from outlast.core.name import turn_and_step
from outlast.testing.scripted import ScriptedError, ScriptedReply

WORDS = "the sea is wide and the boat is small but it holds fast in every wind".split()


def chance_of(*facts: object) -> Random:
    return Random("/".join(str(fact) for fact in facts))  # noqa: S311 - the same every time


def script(
    seed: int, tools: Sequence[str], *, output: bool
) -> Callable[[ModelRequest], ScriptedReply]:
    """Return a model's answers: tools for a while, then words, or the typed answer."""

    def reply(request: ModelRequest) -> ScriptedReply:
        chance = chance_of(seed, first_words(request), request.call_id, request.attempt)
        if failure := random_failure(chance):
            return ScriptedReply(fails=(failure,) * request.attempt)
        if request.is_summary:
            return ScriptedReply(text=random_text(chance, 60), **speech(chance))
        _, step = turn_and_step(request.call_id)
        if step < 5 and chance.random() < 0.6:
            return ScriptedReply(
                calls=random_calls(chance, tools), text=random_text(chance, 3), **speech(chance)
            )
        if output:
            return ScriptedReply(
                calls=((OUTPUT_TOOL, {"value": chance.randrange(100)}),), **speech(chance)
            )
        return ScriptedReply(text=random_text(chance, 60), **speech(chance))

    return reply


def first_words(request: ModelRequest) -> str:
    said = (m for m in request.view.messages if isinstance(m, UserMessage))
    return next((text_of(message.content) for message in said), "")


def random_failure(chance: Random) -> ScriptedError | None:
    match chance.random():
        case luck if luck < 0.06:
            return ScriptedError("transient", "busy")
        case luck if luck < 0.08:
            return ScriptedError("transient", "come back soon", retry_after=2_000)
        case luck if luck < 0.10:
            return ScriptedError("transient", "come back later", retry_after=20_000)
        case luck if luck < 0.12:
            return ScriptedError("recoverable", "not like that")
        case luck if luck < 0.123:
            return ScriptedError("structural", "never")
    return None


def random_calls(chance: Random, tools: Sequence[str]) -> tuple[tuple[str, dict[str, Any]], ...]:
    wanted = [chance.choice(tools) for _ in range(chance.choice([1, 1, 2, 4]))]
    if chance.random() < 0.03:
        wanted.append("nonsense")
    return tuple((name, {"n": chance.randrange(20)}) for name in wanted)


def random_text(chance: Random, most: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(chance.randrange(most)))


def speech(chance: Random) -> dict[str, Any]:
    """Say how an answer is given: at once, or in pieces, some of which may not arrive."""
    chunks = chance.choice([1, 1, 3, 8])
    return {
        "delay": chance.choice([0.0, 0.01, 0.5, 4.0]),
        "chunks": chunks,
        "pace": chance.choice([0.0, 0.05, 0.5]),
        "reasoning": random_text(chance, 6) if chance.random() < 0.2 else "",
        "cut_after": chance.randrange(chunks) if chance.random() < 0.1 else None,
    }
