"""A loop in a directory, with an agent that plans, and a ledger outside of what it has done.

The agent's model keeps nothing in mind: it reads its progress from the prompt, as a real one has to
that is asked in a new conversation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast import Agent, Context, ToolResult, tool
from outlast.agents.model.client import ModelRequest
from outlast.agents.planning.progress import NO_PLAN
from outlast.core.message import ToolOutputs
from outlast.milestones import DurableLoop
from outlast.planning import Planning
from outlast.state import slice_type
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, say

Fails = Callable[[ModelRequest], bool]

REMAINS = re.compile(r"^- (\d+)\. (.+) \((?:pending|in_progress)\)$", re.M)


@slice_type("loop-finding")
@dataclass(frozen=True)
class Finding:
    """What a step came to: kept in the session, as nothing else survives."""

    title: str


class EffectFile:
    """What was done, outside of all that the loop keeps; a line is one write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, effect: str) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, f"{effect}\n".encode())
        os.close(descriptor)

    def read(self) -> list[str]:
        return self.path.read_text().splitlines()


def never(request: ModelRequest) -> bool:
    return False


def worker(
    effects: EffectFile, steps: int = 2, fails: Fails = never, **options: Any
) -> Agent[Any, str]:
    """Makes a plan of so many steps, works each off and marks it done, and says "done".

    Where `fails` says so of what the model is asked, the model fails for good.
    """

    @tool
    async def work(ctx: Context, title: str) -> ToolResult[Finding]:
        """Do what a step says."""
        effects.add(title)
        return ToolResult(f"worked on {title}", Finding(title))

    def reply(request: ModelRequest) -> ScriptedReply:
        effects.add("asked")
        if fails(request):
            raise ScriptedError("structural", "the model is broken")
        if NO_PLAN in request.tail:
            titles = [f"step {number}" for number in range(1, steps + 1)]
            return call("planning_setup_plan", objective="work", initial_steps=titles)
        remaining = REMAINS.findall(request.tail)
        if not remaining:
            return say("done")
        number, title = remaining[0]
        last = request.view.messages[-1]
        if isinstance(last, ToolOutputs) and last.results[0].text == f"worked on {title}":
            return call("planning_update_step", step_id=int(number), status="done")
        return call("work", title=title)

    return Agent("worker", ScriptedModel(reply), tools=[work], planning=Planning(), **options)


def effect_file(directory: Path) -> EffectFile:
    """The ledger of the agent of a directory, next to it."""
    path = directory.with_name(f"{directory.name}.effects")
    path.touch()
    return EffectFile(path)


def loop_in(
    directory: Path, steps: int = 2, fails: Fails = never, **options: Any
) -> DurableLoop[str, str]:
    """A loop in a directory, whose agent notes what it does beside it."""
    return DurableLoop(worker(effect_file(directory), steps, fails), directory, str, **options)


def effects_of(loop: DurableLoop[Any, Any]) -> list[str]:
    """What was done for a loop so far, without how often its model was asked."""
    found = effect_file(loop.directory).read()
    return [effect for effect in found if effect != "asked"]


def has_done(number: int) -> Fails:
    """Fail as soon as the progress that the model is told has a step done."""
    return lambda request: f"- ✓ {number}. " in request.tail


def has_worked_on(title: str) -> Fails:
    """Fail as soon as a step was worked on, and is not marked done yet."""

    def fails(request: ModelRequest) -> bool:
        last = request.view.messages[-1]
        return isinstance(last, ToolOutputs) and last.results[0].text == f"worked on {title}"

    return fails


def answers_of(loop: DurableLoop[Any, Any]) -> int:
    """How often its model was asked."""
    return effect_file(loop.directory).read().count("asked")
