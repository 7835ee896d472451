"""Rules made by chance: they refuse, say something, take their time and fail.

What one says depends on the session, the turn and the step alone, so that a simulation can be
repeated.
"""

import asyncio
from typing import Any

from outlast.agents.rule import (
    Every,
    PolicyCall,
    ReadBeforeWrite,
    Rule,
    SequentialDependency,
    TurnContext,
    completion,
    feedback,
    policy,
)
from outlast.testing.simulation.random_answer import chance_of

FIND_FIRST = SequentialDependency(tool="charge", after="find")
KNOWN_FIRST = ReadBeforeWrite()


def resource_of(args: dict[str, Any]) -> int:
    """Return the resource that a call of a tool is about; there are few, so that they are met."""
    return int(args["n"] % 3)


def random_rules(seed: int, agent: str) -> list[Rule]:
    """Return some rules, or none."""
    chance = chance_of(seed, "rules of", agent)
    if chance.random() < 0.4:
        return []
    rules: list[Rule] = [FIND_FIRST, KNOWN_FIRST, moody, stay, hurry, settled]
    return [rule for rule in rules if chance.random() < 0.7]


async def consider(*facts: object) -> float:
    """Take some time, and return a chance; it may fail."""
    chance = chance_of(*facts)
    await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.5, 3.0]))
    luck = chance.random()
    if luck > 0.97:
        raise ValueError("it went wrong")
    return luck


@policy
async def moody(call: PolicyCall) -> str | None:
    luck = await consider("moody", call.session.id, call.call_id)
    return "not now" if luck < 0.1 else None


@feedback(every=Every(calls=2))
async def stay(turn: TurnContext) -> str | None:
    luck = await consider("stay", turn.session.id, turn.turn, turn.step)
    return f"{turn.calls} calls so far" if luck < 0.7 else None


@feedback(every=Every(seconds=8))
async def hurry(turn: TurnContext) -> str | None:
    luck = await consider("hurry", turn.session.id, turn.turn, turn.step)
    return "come to an end" if luck < 0.7 else None


@completion
async def settled(turn: TurnContext) -> str | None:
    luck = await consider("settled", turn.session.id, turn.turn, turn.step)
    return "not yet" if luck < 0.3 else None
