"""Effects of tools on the outside world, recorded apart from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any

from msgspec import Struct

from outlast.agents.agent import Agent
from outlast.agents.tool import Tool


class Effect(Struct, frozen=True):
    """Something that was done, with its facts written out, and the tool that did it."""

    what: str
    tool: str = ""
    idempotency_key: str = ""


Page = list[Effect]

_at_work: ContextVar[tuple[Page, str] | None] = ContextVar("at_work", default=None)


class Ledger:
    """Stands for the outside world in a test of your tools."""

    def __init__(self) -> None:
        self.effects: Page = []

    def record(self, effect: str, *, idempotency_key: str = "", **facts: object) -> bool:
        """Note that an effect happened; say whether it did.

        The facts tell one effect from another, so they must be the same in every run. With
        an `idempotency_key` the ledger behaves like a service that honours such keys: the same
        key again is the same effect and does not happen twice.
        """
        page, tool = _at_work.get() or (self.effects, "")
        what = f"{effect}({', '.join(f'{name}={value!r}' for name, value in facts.items())})"
        done = Effect(what, tool, idempotency_key)
        if idempotency_key and done in page:
            return False
        page.append(done)
        return True

    def turn_page(self) -> Page:
        """Begin anew; what still runs from before goes on writing to the old page."""
        self.effects = []
        return self.effects


def watch(agents: Iterable[Agent[Any, Any]], ledger: Ledger) -> list[Agent[Any, Any]]:
    """Return the agents and their subagents with tools that note their name in the ledger."""
    watched: dict[int, Agent[Any, Any]] = {}

    def of(agent: Agent[Any, Any]) -> Agent[Any, Any]:
        if id(agent) not in watched:
            found = watched[id(agent)] = copy(agent)
            found.tools = {name: watch_tool(tool, ledger) for name, tool in agent.tools.items()}
            found.subagents = tuple(
                of(each) if isinstance(each, Agent) else each for each in agent.subagents
            )
        return watched[id(agent)]

    return [of(agent) for agent in agents]


def watch_tool(tool: Tool, ledger: Ledger) -> Tool:
    @contextmanager
    def at_work() -> Iterator[None]:
        token = _at_work.set((ledger.effects, tool.name))
        try:
            yield
        finally:
            _at_work.reset(token)

    watched = copy(tool)
    watched.function = signed(tool.function, tool.is_async, at_work)
    return watched


def signed(function: Callable[..., Any], is_async: bool, at_work: Any) -> Callable[..., Any]:
    @wraps(function)
    async def run_async(*args: Any, **kwargs: Any) -> Any:
        with at_work():
            return await function(*args, **kwargs)

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with at_work():
            return function(*args, **kwargs)

    return run_async if is_async else run
