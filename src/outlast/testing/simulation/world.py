"""One simulated world: its loop, store, workers and users.

It runs with faults, then without, then until nothing is left to do; `promise.py` checks the rest.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from outlast.agents.agent import Agent
from outlast.app import Outlast
from outlast.core.amount import BudgetKey
from outlast.core.record import NO_USAGE
from outlast.errors import SessionOver
from outlast.integration.channel import Channel
from outlast.log.verify import verify
from outlast.session import AT_REST, Session
from outlast.store import SessionInfo, Store, UsageFilter
from outlast.stores.sqlite import MemoryStore
from outlast.testing.ledger import Defined
from outlast.testing.simulation.clock import VirtualClock
from outlast.testing.simulation.connection import SimulatedConnection
from outlast.testing.simulation.evidence import SessionEvidence, SimulationEvidence
from outlast.testing.simulation.fault import FaultInjector
from outlast.testing.simulation.fault_plan import FaultPlan
from outlast.testing.simulation.history import History
from outlast.testing.simulation.ledger import LedgerStore
from outlast.testing.simulation.loop import LIFE, ProcessLife, VirtualLoop
from outlast.testing.simulation.probe import watch
from outlast.testing.simulation.provider import SimulatedProvider
from outlast.testing.simulation.random_agent import (
    TENANTS,
    OutsideService,
    random_agents,
    random_budgets,
)
from outlast.testing.simulation.random_channel import RandomChannels
from outlast.testing.simulation.random_context import random_window
from outlast.testing.simulation.random_deployment import RandomDeployments
from outlast.testing.simulation.random_queue import QueueOperator
from outlast.testing.simulation.random_workflow import EVENT, LEAN, RandomWorkflows
from outlast.testing.simulation.reader import SimulatedReader, all_events
from outlast.testing.simulation.recording import RecordingStore
from outlast.testing.simulation.runner import FOR_ALL, SimulatedRunner
from outlast.testing.simulation.user import SimulatedUser
from outlast.testing.simulation.worker import ADDRESS, FEWEST, SimulatedWorkers

PEOPLE = 4
READERS = 2
MOMENTS = 24
TIMEOUT = 1800.0
"""How many seconds all work may take to end once nothing goes wrong any more."""
EXCITEMENT = 20_000
"""How many things may happen in that time."""
SERVICES = 6
"""How many tasks a worker may have that carries nothing: it claims, watches, enlists, stops."""

Wrap = Callable[[Store], Store]


class SimulatedWorld:
    """All there is in one simulation."""

    def __init__(
        self,
        seed: int,
        agents: Sequence[Agent[Any, Any]] | None,
        messages: Sequence[str],
        wrap: Wrap,
        *,
        with_workflows: bool = False,
    ) -> None:
        self.loop = VirtualLoop()
        self.history = History(self.loop.time, whose)
        self._seed = seed
        self._messages = messages
        self._fault_plan = FaultPlan(seed)
        self._clock = VirtualClock(self.loop, f"{seed}/store")
        self.memory = MemoryStore(self._clock)
        if agents is None or with_workflows:
            self.memory = LedgerStore(self._clock)
        self._program = RandomWorkflows(seed, self.history) if with_workflows else None
        self._workflows = self._program.workflows() if self._program else []
        self._store = RecordingStore(wrap(self.memory), self.history, self._clock)
        self._outside = OutsideService(seed, self.history)
        self._oauth_service = self._outside.oauth_service if agents is None else None
        self._budgets = random_budgets(seed) if agents is None else {}
        given = agents if agents is not None else random_agents(seed, self._outside)
        self._agents = [watch(agent, self.history) for agent in given]
        self._defined: list[Defined] = [*self._agents, *self._workflows]
        window = random_window(seed) if agents is None else None
        self._provider = SimulatedProvider(seed, self.history, window)
        self._deployments = RandomDeployments(
            seed, self._store, self.history, wanted=agents is None
        )
        self._workers = SimulatedWorkers(
            self._agents,
            self._store,
            self.loop,
            self._fault_plan,
            self.history,
            seed,
            self._oauth_service,
            self._provider,
            self._deployments,
            self._workflows,
        )
        self._faults = FaultInjector(
            self._workers, self.memory, self._clock, self._fault_plan, self.history
        )
        self._connections: list[SimulatedConnection] = []
        self._channels = RandomChannels(
            seed,
            self._agents,
            self.memory,
            self.history,
            self._app,
            wanted=agents is None,
        )

    # Run

    async def happen(self) -> SimulationEvidence:
        """Live through it all, and say what is left."""
        operator = QueueOperator(self._seed, self.memory, self.history)
        await operator.set_up()
        for tenant, terms in self._budgets.items():
            await self.memory.budget.set_budget(tenant, BudgetKey("tenant"), terms, expected=None)
        for _ in range(FEWEST):
            self._workers.start()
        changes = asyncio.create_task(operator.change_repeatedly())
        deploys = asyncio.create_task(self._deployments.change_repeatedly())
        faults = asyncio.create_task(self._faults.strike_repeatedly())
        outages = asyncio.create_task(self._provider.come_and_go())
        edits = asyncio.create_task(self._edit_repeatedly())
        posts = asyncio.create_task(self._channels.live())
        readers = [self._begin(ProcessLife(f"r{n}"), self._read) for n in range(READERS)]
        people = [self._begin(ProcessLife(f"p{n}"), self._live) for n in range(PEOPLE)]
        await asyncio.gather(*people)
        await asyncio.sleep(self._fault_plan.between(0.0, 60.0))
        await end(faults)
        await end(outages)
        await end(changes)
        await end(deploys)
        await end(edits)
        await end(posts)
        if self._program:
            self._program.edition = LEAN
        self._provider.mend()
        self._fault_plan.calm_down()
        self._faults.make_good()
        await self._deployments.settle([process.life.name for process in self._workers.living])
        unfinished = await self._finish()
        await self._channels.settle()
        for reader in readers:
            await end(reader)
        held = [*await self._held_by_workers()]
        for process in self._workers.living:
            await self._workers.stop(process)
        held += [*await self._held_in_store()]
        return await self._evidence(tuple(held), unfinished)

    def _begin(
        self, life: ProcessLife, work: Callable[[ProcessLife, Outlast], Any]
    ) -> asyncio.Task[Any]:
        return self.loop.create_task(work(life, self._app(life)), context=life.context())

    def _app(self, life: ProcessLife, channels: Sequence[Channel] = ()) -> Outlast:
        clock = VirtualClock(self.loop, f"{self._seed}/{life.name}")
        connection = SimulatedConnection(self._store, life, self._fault_plan, self.history, clock)
        self._connections.append(connection)
        app = Outlast(
            self._defined,
            store=connection,
            worker=None,
            clock=clock,
            public_url=ADDRESS,
            channels=channels,
        )
        if self._oauth_service:
            app._connections = self._oauth_service.connections(
                connection, clock, ADDRESS, app._inbox.reply
            )
        return app

    def _user(self, name: str, app: Outlast) -> SimulatedUser:
        chance = Random(f"{self._seed}/{name}")  # noqa: S311 - the same every time
        in_queues = self._oauth_service is not None
        return SimulatedUser(
            name, app, self.history, chance, self._messages, self._outside, in_queues
        )

    async def _edit_repeatedly(self) -> None:
        if self._program:
            await self._program.change_repeatedly()

    async def _live(self, life: ProcessLife, app: Outlast) -> None:
        if self._workflows:
            chance = Random(f"{self._seed}/{life.name}")  # noqa: S311 - the same every time
            await SimulatedRunner(life.name, app, self.history, chance).live(MOMENTS)
            return
        await self._user(life.name, app).live(MOMENTS)

    async def _read(self, life: ProcessLife, app: Outlast) -> None:
        chance = Random(f"{self._seed}/{life.name}")  # noqa: S311 - the same every time
        await SimulatedReader(app, self.memory, self.history, chance).read_repeatedly()

    # The end

    async def _finish(self) -> tuple[str, ...]:
        """Answer all requests until every session rests; return those that do not."""
        app = self._app(ProcessLife("closer"))
        person = self._user("closer", app)
        deadline, most = self.loop.time() + TIMEOUT, len(self.history.notes) + EXCITEMENT
        while True:
            restless = [i for i in await self._sessions() if not rests(i)]
            for run in [i for i in restless if i.mode == "run"]:
                await press_on(app, run)
            open_requests = await self.memory.listing.requests(limit=10_000)
            if not restless and not open_requests:
                return ()
            if self.loop.time() > deadline or len(self.history.notes) > most:
                return tuple(f"{i.session_id} does not come to rest: {i.lanes}" for i in restless)
            for name in dict.fromkeys(request.session_id for request in open_requests):
                session = await app.session(name)
                for request in await session.requests():
                    await person.answer(session, request)
            await asyncio.sleep(1.0)

    async def _sessions(self) -> Sequence[SessionInfo]:
        return await self.memory.listing.sessions(limit=10_000)

    async def _held_by_workers(self) -> list[str]:
        """Look for what workers still hold for sessions that rest."""
        await asyncio.sleep(40.0)  # what was begun with a service is brought to its end
        found = []
        for process in self._workers.living:
            tasks = [task for task in process.life.tasks if not task.done()]
            if len(tasks) > SERVICES:
                names = ", ".join(task.get_name() for task in tasks)
                found.append(f"{process.life.name} has nothing to do, and still runs {names}")
        return found

    async def _held_in_store(self) -> list[str]:
        owned = [
            f"{info.session_id} {lane.lane} rests, and is held by {lane.worker}"
            for info in await self._sessions()
            for lane in info.lanes
            if lane.worker
        ]
        permits = [
            f"{row.session_id} {row.call_id} has ended, and has or awaits a permit of {row.name}"
            for row in await self.memory.limit.permits()
        ]
        return [*owned, *permits]

    async def _evidence(
        self, held: tuple[str, ...], unfinished: tuple[str, ...]
    ) -> SimulationEvidence:
        outside = Outlast(self._defined, store=self.memory, worker=None, clock=self._clock)
        sessions = {}
        for info in reversed(await self._sessions()):
            name = info.session_id
            session: Session[Any] = await outside.session(name)
            page = await self.memory.log.read(name, 0, 1_000_000)
            alike = await outside.sessions(tenant=info.tenant, tags=info.tags) if info.tags else ()
            sessions[name] = SessionEvidence(
                info=info,
                entries=page.entries,
                events=tuple(await all_events(session)),
                alike=tuple(each.session_id for each in alike),
                findings=tuple(await verify(self.memory, name)),
            )
        agents = {agent.name: agent for agent in self._agents}
        rows = tuple(self.memory.bookings()) if isinstance(self.memory, LedgerStore) else ()
        lines = await self.memory.usage.by(None, UsageFilter())
        used = lines[0].total if lines else NO_USAGE
        budgets = [
            (tenant, state)
            for tenant in TENANTS
            for state in await self.memory.budget.find_budgets(tenant, [BudgetKey("tenant")])
        ]
        return SimulationEvidence(
            self.history,
            sessions,
            agents,
            rows,
            held,
            unfinished,
            used,
            budgets,
            {each.name: each for each in self._workflows},
        )

    # After the end

    def close(self) -> None:
        """Let nothing linger: unwind every task there is, the dead ones' too."""
        connections = [*self._connections, *(p.connection for p in self._workers.processes)]
        for connection in connections:
            connection.is_cut = True
            connection.life.go_on(self.loop)
        tasks = sorted(asyncio.all_tasks(self.loop), key=lambda task: task.get_name())
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=60.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.memory.close())
        for connection in connections:
            connection.life.tasks.clear()
        self._workers.processes.clear()
        self.loop.close()


def whose() -> str:
    life = LIFE.get()
    return life.name if life else ""


async def press_on(app: Outlast, info: SessionInfo) -> None:
    """Send a run an event: it may wait for one that nobody else will send."""
    if not info.over:
        run = await app.get_run(info.session_id)
        with suppress(SessionOver):
            await run.send_event(EVENT, FOR_ALL)


def rests(info: SessionInfo) -> bool:
    """Whether nothing has to happen any more; a run has to end."""
    if info.mode == "run" and not info.over:
        return False
    return all(
        lane.status in AT_REST and not lane.worker and not lane.queued and lane.ready_at is None
        for lane in info.lanes
    )


async def end(task: asyncio.Task[Any]) -> None:
    """Have a task end, and raise what it may have ended with before."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
