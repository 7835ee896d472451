"""What a message asks for: the tools to call, step by step. A model that reads it needs no more."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

Call = tuple[str, dict[str, Any]]
Plan = list[list[Call]]

AT_ONCE = ("look", "note", "pay", "ship")
ONE_BY_ONE = ("book", "haul", "nap", "refund")
DOCKS = 3
SHORTEST, LONGEST = 20, 600
"""How long a tool takes, in milliseconds."""


def draw_plan(chance: Random, name: str) -> Plan:
    """Draw a turn: some tools at once, then perhaps one that is special."""
    first = chance.sample(AT_ONCE, chance.randint(1, len(AT_ONCE)))
    plan = [[draw_call(chance, tool, name) for tool in first]]
    second = chance.sample(ONE_BY_ONE, chance.randint(0, 2))
    return [*plan, [draw_call(chance, tool, name) for tool in second]] if second else plan


def draw_call(chance: Random, tool: str, name: str) -> Call:
    """Draw a call's arguments; no two calls have the same, so that none repeats another."""
    args: dict[str, Any] = {"item": f"{name}-{tool}", "ms": chance.randint(SHORTEST, LONGEST)}
    if tool == "haul":
        args["dock"] = f"d{chance.randrange(DOCKS)}"
    return tool, args


def write_plan(plan: Plan) -> str:
    return msgspec.json.encode(plan).decode()


def read_plan(text: str) -> Plan:
    return msgspec.json.decode(text, type=Plan)
