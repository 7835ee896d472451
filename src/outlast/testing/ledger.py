"""Effects of tools on the outside world, recorded apart from the store."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import Any

from msgspec import Struct

from outlast.agents.agent import Agent
from outlast.agents.tool import Tool
from outlast.workflows.workflow import Workflow


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


Defined = Agent[Any, Any] | Workflow[Any, Any]


def watch(agents: Iterable[Defined], ledger: Ledger) -> list[Defined]:
    """Return agents, their subagents and workflows with tools that note their name in the ledger.

    What a workflow does itself has its name.
    """
    watched: dict[int, Agent[Any, Any]] = {}

    def of(agent: Agent[Any, Any]) -> Agent[Any, Any]:
        if id(agent) not in watched:
            found = watched[id(agent)] = copy(agent)
            found.tools = {name: watch_tool(tool, ledger) for name, tool in agent.tools.items()}
            found.subagents = tuple(
                of(each) if isinstance(each, Agent) else each for each in agent.subagents
            )
        return watched[id(agent)]

    return [
        watch_workflow(each, ledger) if isinstance(each, Workflow) else of(each) for each in agents
    ]


def watch_workflow(workflow: Workflow[Any, Any], ledger: Ledger) -> Workflow[Any, Any]:
    watched = copy(workflow)
    watched.function = signed(workflow.function, True, at_work_in(ledger, workflow.name))
    return watched


def watch_tool(tool: Tool, ledger: Ledger) -> Tool:
    watched = copy(tool)
    watched.function = signed(tool.function, tool.is_async, at_work_in(ledger, tool.name))
    return watched


def at_work_in(ledger: Ledger, name: str) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def at_work() -> Iterator[None]:
        token = _at_work.set((ledger.effects, name))
        try:
            yield
        finally:
            _at_work.reset(token)

    return at_work


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
