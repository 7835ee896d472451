"""Builds and starts what works in this process while an app is open: worker, outbox, scheduler.

Made by the app, which says when; each is stopped by the stack that it is given.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from inspect import isclass, iscoroutine
from typing import Any, cast

from msgspec.structs import replace

from outlast.agents.agent import Agents, name_of
from outlast.agents.model.client import ModelClient
from outlast.agents.model.pydantic_ai import clients_of, prepare
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.executor import AgentExecutor
from outlast.agents.runtime.loop_watch import LoopWatch
from outlast.agents.runtime.thread import ToolThreads
from outlast.clock import Clock
from outlast.core.instant import seconds
from outlast.engine.executor import Executor
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.errors import InvalidDefinition, StoreUnavailable
from outlast.integration.outbox.consumer import OutboxRoutes
from outlast.integration.outbox.dispatcher import OutboxDispatcher
from outlast.integration.outbox.settings import WebhookSettings
from outlast.integration.schedule.scheduler import INTERVAL, Scheduler
from outlast.integration.schedule.schedules import Schedules
from outlast.integration.telemetry import Telemetry
from outlast.integration.telemetry.instrument import Instruments
from outlast.integration.telemetry.traced import TracedExecutor, TracedStore
from outlast.log_context import get_logger
from outlast.store import Store
from outlast.workflows.executor import WorkflowExecutor
from outlast.workflows.workflow import Workflow

log = get_logger("outlast.engine")

Deps = Callable[[], AbstractAsyncContextManager[Any]]


class Runtime:
    """`environment` says what tools may reach, as of the moment when it is asked."""

    def __init__(
        self,
        agents: Agents,
        store: Store,
        clock: Clock,
        deps: Deps | None,
        telemetry: Telemetry | None,
        environment: Callable[[], Environment],
        session_bytes: int = 0,
        workflows: Mapping[str, Workflow[Any, Any]] = {},
    ) -> None:
        self._agents = agents
        self._workflows = workflows
        self._store = store
        self._clock = clock
        self._deps = checked_deps(deps)
        self._telemetry = telemetry
        self._environment = environment
        self._session_bytes = session_bytes

    async def create_worker(self, settings: WorkerSettings, stack: AsyncExitStack) -> Worker:
        """Return a worker that has all it needs, and has not begun.

        Raises InvalidDefinition for an agent none of whose models can be had here: a worker
        without it would keep every session waiting that it takes.
        """
        names = settings.agents or (*self._agents, *self._workflows)
        flows = [name for name in dict.fromkeys(names) if name in self._workflows]
        served = dict.fromkeys(name_of(name, self._agents) for name in names if name not in flows)
        clients = {name: clients_of(self._agents[name]) for name in served}
        for name, models in clients.items():
            for client in models:
                # Before they are prepared: if one cannot be, all of them are closed.
                stack.push_async_callback(client.close)
            await prepare(models, name)
        deps = await self.enter_deps(stack)
        watch = LoopWatch(self._clock)
        watch.start()
        stack.callback(watch.stop)
        environment = replace(self._environment(), deployment=settings.deployment)
        executors = self._executors(clients, flows, deps, watch, environment)
        return self._observed_worker(executors, settings, watch)

    async def enter_deps(self, stack: AsyncExitStack) -> Any:
        """Return what tools and prompts have as their `deps`, until the stack is closed."""
        return await stack.enter_async_context(dependencies(self._deps)) if self._deps else None

    def _executors(
        self,
        clients: Mapping[str, Sequence[ModelClient]],
        flows: Sequence[str],
        deps: Any,
        watch: LoopWatch,
        environment: Environment,
    ) -> dict[str, Executor]:
        # One for all agents: what is bounded is the process.
        threads = ToolThreads()
        found: dict[str, Executor] = {
            name: AgentExecutor(
                self._agents[name], models, deps, threads, self._clock, environment, watch
            )
            for name, models in clients.items()
        }
        for name in flows:
            found[name] = WorkflowExecutor(self._workflows[name], deps, self._clock, environment)
        return found

    def _observed_worker(
        self, executors: Mapping[str, Executor], settings: WorkerSettings, watch: LoopWatch
    ) -> Worker:
        """Return a worker, traced with OpenTelemetry unless telemetry is off."""
        to = Instruments(self._telemetry, self._clock) if self._telemetry else None
        observed = {
            name: TracedExecutor(executor, name, self._agents.get(name), self._clock, to)
            for name, executor in executors.items()
        }
        store: Store = TracedStore(self._store, to) if to else self._store
        return Worker(
            store,
            observed,
            self._clock,
            settings,
            session_bytes=self._session_bytes,
            counts=watch.counts,
        )

    def start_outbox(
        self, routes: OutboxRoutes, settings: WebhookSettings, stack: AsyncExitStack
    ) -> None:
        """Start the dispatcher of the outbox, if this app has a consumer."""
        if not routes.is_empty:
            dispatcher = OutboxDispatcher(self._store, self._clock, routes, settings)
            dispatcher.start()
            stack.push_async_callback(dispatcher.stop)

    def start_scheduler(
        self, schedules: Schedules, settings: WorkerSettings, stack: AsyncExitStack
    ) -> None:
        """Start the scheduler, where there are schedules to keep."""
        if schedules.schedules:
            interval = min(INTERVAL, INTERVAL * seconds(settings.poll))
            scheduler = Scheduler(self._store, self._clock, schedules, interval)
            scheduler.start()
            stack.push_async_callback(scheduler.stop)


async def open_soon(
    open_all: Callable[[], Awaitable[AsyncExitStack]],
    settings: WorkerSettings | None,
    clock: Clock,
) -> AsyncExitStack:
    """Open; a worker waits for a store that takes no connection now, for as long as it takes.

    Each try begins anew: workers that kept the connections they got would wait for each other.
    """
    is_told = False
    while True:
        try:
            return await open_all()
        except StoreUnavailable as error:
            if settings is None or not error.details.get("retry"):
                raise
            # Once, however long it takes.
            if not is_told:
                log.warning("the worker waits for the store", extra={"reason": error.message})
            is_told = True
        await asyncio.sleep(clock.jitter(seconds(settings.poll)))


DEPS = "deps is a function that returns an async context manager (see contextlib), "


def checked_deps(deps: Any) -> Deps | None:
    """Return what gives tools their `ctx.deps`, if it can be called for each worker."""
    is_made = hasattr(deps, "__aenter__") and not isclass(deps)
    if deps is not None and (is_made or not callable(deps)):
        raise InvalidDefinition(f"{DEPS}and is given uncalled, not {deps!r}")
    return cast("Deps | None", deps)


def dependencies(deps: Deps) -> AbstractAsyncContextManager[Any]:
    """Return what is entered while a worker works, if it can be."""
    given: Any = deps()
    if not hasattr(given, "__aenter__") or not hasattr(given, "__aexit__"):
        if iscoroutine(given):
            given.close()
        raise InvalidDefinition(f"{DEPS}and this one returned {given!r}")
    return cast("AbstractAsyncContextManager[Any]", given)
