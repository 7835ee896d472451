"""The workers of a simulation: real workers, each in a simulated process that can be stopped.

Owns how such a process begins, is killed, stands still and begins again. What goes wrong, and when,
is in `fault.py` and `fault_plan.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from outlast.agents.agent import Agent
from outlast.agents.model.pydantic_ai import clients_of
from outlast.agents.runtime.environment import Environment
from outlast.agents.runtime.thread import ThreadSlot, ToolThreads
from outlast.agents.subagent import ref_of
from outlast.core.record import DeliveryQueued
from outlast.engine.executor import Executor
from outlast.engine.lease_keeper import LeaseKeeper
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.store import RequestInfo, Store
from outlast.testing.simulation.clock import VirtualClock
from outlast.testing.simulation.connection import SimulatedConnection
from outlast.testing.simulation.fault_plan import FaultPlan
from outlast.testing.simulation.history import (
    FaultInjected,
    History,
    UnexpectedError,
    WorkerStarted,
)
from outlast.testing.simulation.loop import ProcessLife, VirtualLoop
from outlast.testing.simulation.oauth_service import OAuthService
from outlast.testing.simulation.probe import ProbedExecutor
from outlast.testing.simulation.provider import SimulatedProvider
from outlast.testing.simulation.random_deployment import RandomDeployments
from outlast.workflows.executor import WorkflowExecutor
from outlast.workflows.registry import WorkflowRef
from outlast.workflows.workflow import Workflow

if TYPE_CHECKING:
    from outlast.integration.connection.connections import Connections

T = TypeVar("T")

LEASE = 10.0
SETTINGS = WorkerSettings(lease=LEASE, poll=4.0, watch=3.0, rest=2.0, lane_cache=160_000)
FEWEST, MOST = 2, 5
ADDRESS = "https://simulated.example"


class VirtualLeaseKeeper(LeaseKeeper):
    """A lease that is renewed on the simulation's loop instead of by a thread."""

    def start(self) -> None:
        self._timer = self._loop.call_later(self._length / 3, self._tick)

    def _tick(self) -> None:
        pause = self.renew()
        if pause is not None:
            self._timer = self._loop.call_later(pause, self._tick)

    async def end(self) -> None:
        self._timer.cancel()
        self.release()


class InlineThreads(ToolThreads):
    """Runs sync tools where they stand."""

    def place(self, tell: Callable[[], None], tenant: str = "") -> ThreadSlot:
        place = InlineSlot(lambda _: None, tell, tenant, 0)
        place.is_taken = True
        return place


class InlineSlot(ThreadSlot):
    """A slot that runs its work in the caller's thread."""

    def begin(self, function: Callable[[], T]) -> asyncio.Future[T]:
        ended: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        try:
            ended.set_result(function())
        except Exception as error:  # noqa: BLE001 - belongs to the code that awaits the future
            ended.set_exception(error)
        return ended


async def take_nobody_in(request: RequestInfo, reply: DeliveryQueued) -> None:
    """People come back to an app, not to a worker."""
    raise AssertionError(f"{request.request_id} came back to a worker")


class SimulatedWorker:
    """A worker, with all that is its own."""

    def __init__(
        self, life: ProcessLife, connection: SimulatedConnection, clock: VirtualClock
    ) -> None:
        self.life = life
        self.connection = connection
        self.clock = clock
        self.worker: Worker | None = None
        self.is_gone = False
        self.starting: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The worker's name in the registry; it changes after the worker was declared dead."""
        return self.worker.name if self.worker else self.life.name


class SimulatedWorkers:
    """Starts, stops, pauses and kills workers, and remembers all that ever ran."""

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any]],
        store: Store,
        loop: VirtualLoop,
        fault_plan: FaultPlan,
        history: History,
        seed: int,
        oauth_service: OAuthService | None,
        provider: SimulatedProvider,
        deployments: RandomDeployments,
        workflows: Sequence[Workflow[Any, Any]] = (),
    ) -> None:
        self._workflows = workflows
        self.processes: list[SimulatedWorker] = []
        self._agents = agents
        self._store = store
        self._loop = loop
        self._fault_plan = fault_plan
        self._history = history
        self._seed = seed
        self._oauth_service = oauth_service
        self._provider = provider
        self._deployments = deployments

    @property
    def living(self) -> list[SimulatedWorker]:
        """Workers that neither died nor were stopped; some of them may be paused."""
        return [p for p in self.processes if not p.is_gone and not self._has_crashed(p)]

    def _has_crashed(self, process: SimulatedWorker) -> bool:
        """Stop a process silently, as a crash at a commit does."""
        return process.life.is_stopped and not process.life.wakes

    def start(self) -> SimulatedWorker:
        """Start one more worker."""
        name = f"w{len(self.processes) + 1}"
        life, clock = ProcessLife(name), VirtualClock(self._loop, f"{self._seed}/{name}")
        connection = SimulatedConnection(self._store, life, self._fault_plan, self._history, clock)
        process = SimulatedWorker(life, connection, clock)
        self.processes.append(process)
        process.starting = self._loop.create_task(self._start(process), context=life.context())
        return process

    async def _start(self, process: SimulatedWorker) -> None:
        threads = InlineThreads()
        agents = {agent.name: ref_of(agent, ()) for agent in self._agents}
        environment = Environment(
            public_url=ADDRESS,
            agents=agents,
            sign_ins=self._connections_of(process),
            workflows={each.name: WorkflowRef(each, ()) for each in self._workflows},
        )
        executors: dict[str, Executor] = {
            agent.name: ProbedExecutor(
                agent,
                tuple(self._provider.behind(each, agent.name) for each in clients_of(agent)),
                threads,
                process.clock,
                self._history,
                environment,
            )
            for agent in self._agents
        }
        for each in self._workflows:
            executors[each.name] = WorkflowExecutor(each, None, process.clock, environment)
        process.worker = Worker(
            process.connection,
            executors,
            process.clock,
            self._deployments.settings(SETTINGS, process.life.name),
            keep_lease=VirtualLeaseKeeper,
        )
        self._history.note(WorkerStarted, worker=process.life.name)
        try:
            await process.worker.start()
        except Exception as error:  # else the simulation would wait for it for ever
            self._history.note(UnexpectedError, what=f"a worker does not start: {error!r}")
            raise
        self._history.note(WorkerStarted, worker=process.life.name, is_ready=True)

    def _connections_of(self, process: SimulatedWorker) -> Connections | None:
        if self._oauth_service is None:
            return None
        return self._oauth_service.connections(
            process.connection, process.clock, ADDRESS, take_nobody_in
        )

    async def stop(self, process: SimulatedWorker) -> None:
        """Stop a worker gracefully, and wait for it."""
        process.is_gone = True
        stopping = self._loop.create_task(self._stop(process), context=process.life.context())
        await asyncio.wait([stopping])

    async def _stop(self, process: SimulatedWorker) -> None:
        assert process.starting is not None
        await process.starting
        assert process.worker is not None
        await process.worker.stop()

    def kill(self, process: SimulatedWorker) -> None:
        """End a worker between two instructions."""
        process.is_gone = True
        process.life.stop()

    def pause(self, process: SimulatedWorker, seconds: float) -> None:
        """Have a worker stand still for a while."""
        process.life.stop()
        process.life.wakes = True
        self._loop.call_later(seconds, self._wake, process)

    def _wake(self, process: SimulatedWorker) -> None:
        if process.life.wakes and not process.is_gone:
            process.life.wakes = False
            process.life.go_on(self._loop)

    def wake_all(self) -> None:
        """Have all that are paused go on."""
        for process in self.processes:
            self._wake(process)

    def note(self, what: str, process: SimulatedWorker | None = None) -> None:
        self._history.note(FaultInjected, what=what, whom=process.life.name if process else "")
