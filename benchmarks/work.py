"""The agents that are measured, the same in every process."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.model import Model, Saying, texts
from outlast import Agent, Context, Limits, Tool, tool

STEPS = 1000
TEXTS = texts(1024)


def text(number: int) -> str:
    return TEXTS[number % len(TEXTS)]


@tool(readonly=True)
async def look_up(number: int) -> str:
    """Return a text of 1 KB."""
    return text(number)


@tool
async def put_down(number: int) -> str:
    """Return a text of 1 KB, and maybe have changed something."""
    return text(number)


@tool(approval="always")
async def pay(number: int) -> str:
    """Do something that a human has to allow."""
    return text(number)


def stepper(
    steps: int = STEPS,
    delay: float = 0.0,
    on_step: Callable[[int], None] | None = None,
    using: Tool = look_up,
) -> Agent[None, str]:
    """Return an agent that makes so many steps with a tool call in its turn, then ends it."""

    def say(messages: int) -> Saying:
        step = messages // 2
        if on_step:
            on_step(step)
        return Saying(text(step), using.name if step < steps else "", step)

    return Agent(
        "stepper", Model(say, delay=delay), tools=[using], limits=Limits(max_steps=steps + 1)
    )


def asker() -> Agent[None, str]:
    """Return an agent whose one tool call needs a human."""

    def say(messages: int) -> Saying:
        return Saying(text(messages), "pay" if messages == 1 else "", messages)

    return Agent("asker", Model(say), tools=[pay])


@tool(on_interrupt="rerun")
async def delegate(ctx: Context[None], number: int) -> str:
    """Have another agent do it."""
    return str(await ctx.agent("asker").ask("Pay."))


def boss() -> Agent[None, str]:
    """Return an agent that hands its work to one that asks a human."""

    def say(messages: int) -> Saying:
        return Saying(text(messages), "delegate" if messages == 1 else "", messages)

    return Agent("boss", Model(say), tools=[delegate], subagents=[asker()])
