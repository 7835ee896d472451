"""Holdfast: joins a store, an engine and the agents.

`async with app` opens the store and, unless `worker=None`, works in this process too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import unquote, urlsplit

from holdfast.admission import Inbox, Room, Said, content_of, fingerprint
from holdfast.agents.agent import Agent
from holdfast.agents.model import ModelClient
from holdfast.agents.perform import AgentPerformer
from holdfast.agents.provider import ProviderModel
from holdfast.agents.thread import ToolThreads
from holdfast.clock import Clock
from holdfast.core.message import Content
from holdfast.core.name import MAIN, check_id
from holdfast.core.record import SessionStarted
from holdfast.engine.settings import WorkerSettings
from holdfast.engine.worker import Worker
from holdfast.errors import (
    InvalidDefinition,
    InvalidInput,
    NoActiveSession,
    TokenTaken,
    UnknownAgent,
    UnknownSession,
    UnknownWorker,
    UnsupportedStore,
)
from holdfast.session import Receipt, Session
from holdfast.store import LaneInfo, SessionInfo, Store, WorkerInfo
from holdfast.store import Receipt as StoreReceipt
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite import SqliteStore
from holdfast.telemetry import Telemetry
from holdfast.telemetry.instrument import Instruments
from holdfast.telemetry.performer import ObservedPerformer
from holdfast.telemetry.store import ObservedStore

Out = TypeVar("Out")
Deps = Callable[[], AbstractAsyncContextManager[Any]]

DEFAULT_STORE = "sqlite:///holdfast.db"
DEFAULT_WORKER = WorkerSettings()
DEFAULT_TELEMETRY = Telemetry()


class Holdfast:
    """An application: its agents, where their sessions are kept, and who works on them.

    At most `max_queued` messages wait in a session, and `max_queued_per_tenant` in all sessions
    of a tenant; one more is refused with QueueFull. 0 is any number.
    """

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any]] = (),
        *,
        store: str | Store = DEFAULT_STORE,
        worker: WorkerSettings | None = DEFAULT_WORKER,
        deps: Deps | None = None,
        telemetry: Telemetry | None = DEFAULT_TELEMETRY,
        clock: Clock | None = None,
        max_queued: int = 1000,
        max_queued_per_tenant: int = 0,
    ) -> None:
        self.agents = by_name(agents)
        self.clock = clock or Clock()
        self.store = open_store(store, self.clock) if isinstance(store, str) else store
        self._inbox = Inbox(self.store, self.clock, Room(max_queued, max_queued_per_tenant))
        self.settings = worker
        self.worker: Worker | None = None
        self._deps = deps
        self._telemetry = telemetry
        self._stack: AsyncExitStack | None = None

    # Life

    async def open(self) -> None:
        """Open the store and start working; the same as entering `async with app`."""
        if self._stack is not None:
            raise InvalidInput("this app is open already")
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.close)
            await self.store.migrate()
            if self.settings is not None:
                agents = self._served(self.settings.agents)
                deps = await stack.enter_async_context(self._deps()) if self._deps else None
                performers = self._performers(agents, deps)
                for performer in performers.values():
                    stack.push_async_callback(performer.close)
                self.worker = self._observed_worker(performers, self.settings)
                await self.worker.start()
                stack.push_async_callback(self.worker.stop)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        """Hand work back and close the store."""
        stack, self._stack, self.worker = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """For FastAPI and Starlette: `FastAPI(lifespan=app.lifespan)`."""
        async with self:
            yield

    def _served(self, names: Sequence[str]) -> list[Agent[Any, Any]]:
        """Return the agents that this process works for: those named, or all."""
        return [self.agents[self._agent_name(name)] for name in names or self.agents]

    def _performers(
        self, agents: Sequence[Agent[Any, Any]], deps: Any
    ) -> dict[str, AgentPerformer]:
        threads = ToolThreads()
        return {
            agent.name: AgentPerformer(agent, client_of(agent), deps, threads, self.clock)
            for agent in agents
        }

    def _observed_worker(
        self, performers: Mapping[str, AgentPerformer], settings: WorkerSettings
    ) -> Worker:
        """Return a worker whose doings are told to OpenTelemetry, unless nobody wants that."""
        to = Instruments(self._telemetry, self.clock) if self._telemetry else None
        observed = {
            name: ObservedPerformer(
                performer, agent := self.agents[name], client_of(agent).name, self.clock, to
            )
            for name, performer in performers.items()
        }
        store = cast(Store, ObservedStore(self.store, to)) if to else self.store
        return Worker(store, observed, self.clock, settings)

    # Sessions

    async def start(
        self,
        agent: Agent[Any, Out] | str,
        message: Said,
        *,
        mode: str = "conversation",
        dispatch_id: str | None = None,
        continuation_token: str | None = None,
        lane: str = MAIN,
        tenant: str = "default",
        principal: str = "",
        capabilities: Mapping[str, bool] | None = None,
    ) -> Session[Out]:
        """Start a session with a message; it is accepted for good when this returns.

        The same `dispatch_id` again returns the first session. `capabilities` may say
        `{"request_input": False}` where no human can be asked.
        """
        if mode not in ("conversation", "task"):
            raise InvalidInput(f'mode is "conversation" or "task", not {mode!r}')
        if dispatch_id is not None:
            check_id("dispatch_id", dispatch_id)
        if continuation_token is not None:
            check_id("continuation_token", continuation_token)
        started = SessionStarted(
            agent=self._agent_name(agent),
            mode=mode,
            can_ask=can_ask(capabilities or {}),
            tenant=check_id("tenant", tenant),
            principal=principal,
            token=continuation_token or self.clock.token(),
        )
        receipt = await self._inbox.start(
            started, content_of(message), lane=check_id("lane", lane), dispatch_id=dispatch_id
        )
        return self._handle(receipt.session_id, receipt)

    async def session(self, session_id: str) -> Session[Any]:
        """Return a handle on a session that exists."""
        if await self.store.session(session_id) is None:
            raise UnknownSession(f"there is no session {session_id}", session=session_id)
        return self._handle(session_id)

    async def deliver(
        self,
        continuation_token: str,
        message: Said,
        *,
        agent: Agent[Any, Any] | str | None = None,
        dispatch_id: str | None = None,
        tenant: str = "default",
    ) -> Receipt[Any]:
        """Send a message to wherever a token leads; start a session there if an agent is given.

        The same `dispatch_id` again returns the first receipt, whichever of both it did.
        """
        content, given = content_of(message), check_id("continuation_token", continuation_token)
        mark = fingerprint("deliver", given, content)
        check_id("tenant", tenant)
        found = await self.store.find_token(tenant, given)
        if found is None and agent is None:
            raise NoActiveSession("no living session has this continuation token")
        if found is None and agent is not None:
            try:
                return await self._start_at(given, agent, content, dispatch_id, tenant, mark)
            except TokenTaken:
                found = await self.store.find_token(tenant, given)  # somebody was quicker
                if found is None:
                    raise
        assert found is not None
        session = self._handle(found)
        return await session.send(content, dispatch_id=dispatch_id, scope="tenant", mark=mark)

    async def _start_at(
        self,
        token: str,
        agent: Agent[Any, Any] | str,
        content: Content,
        dispatch_id: str | None,
        tenant: str,
        mark: str,
    ) -> Receipt[Any]:
        started = SessionStarted(agent=self._agent_name(agent), tenant=tenant, token=token)
        receipt = await self._inbox.start(
            started, content, lane=MAIN, dispatch_id=dispatch_id, mark=mark
        )
        return Receipt(self._handle(receipt.session_id), receipt)

    def _handle(self, session_id: str, receipt: StoreReceipt | None = None) -> Session[Any]:
        return Session(session_id, self.store, self.clock, self.agents, self._inbox, receipt)

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        """List sessions, newest first."""
        return await self.store.sessions(
            tenant=tenant, agent=agent, status=status, before=before, limit=limit
        )

    # The fleet

    async def workers(self) -> Sequence[WorkerInfo]:
        """List the living workers of this store, oldest first."""
        return await self.store.workers()

    async def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: str | None = None,
        worker: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        """List lanes, those of the newest session first, behind the session and lane `after`."""
        return await self.store.lanes(
            session_id=session_id,
            tenant=tenant,
            agent=agent,
            status=status,
            worker=worker,
            after=after,
            limit=limit,
        )

    async def drain(self, worker: str) -> None:
        """Ask a worker, wherever it runs, to hand back its lanes and stop."""
        if not await self.store.drain(worker):
            raise UnknownWorker(f"no living worker is called {worker}", worker=worker)

    def _agent_name(self, agent: Agent[Any, Any] | str) -> str:
        name = agent if isinstance(agent, str) else getattr(agent, "name", "")
        if name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise UnknownAgent(f"this app has no agent {name!r}; it has: {known}", agent=name)
        return str(name)


def by_name(agents: Sequence[Agent[Any, Any]]) -> dict[str, Agent[Any, Any]]:
    found: dict[str, Agent[Any, Any]] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidDefinition(f"a {type(agent).__name__} is not an Agent")
        if agent.name in found:
            raise InvalidDefinition(f"two agents are named {agent.name}", agent=agent.name)
        found[agent.name] = agent
    return found


def can_ask(capabilities: Mapping[str, bool]) -> bool:
    unknown = set(capabilities) - {"request_input"}
    if unknown:
        raise InvalidInput(f"there is no capability {', '.join(sorted(unknown))}")
    return bool(capabilities.get("request_input", True))


def client_of(agent: Agent[Any, Any]) -> ModelClient:
    """Return the agent's model; a provider's is loaded when it is first called."""
    model: Any = agent.model
    return cast(ModelClient, model) if hasattr(model, "classify") else ProviderModel(model)


def open_store(url: str, clock: Clock) -> Store:
    """Return the store that a URL names. Nothing is opened yet."""
    parts = urlsplit(url)
    match parts.scheme:
        case "memory":
            return MemoryStore(clock)
        case "sqlite":
            # As everywhere: three slashes and a relative path, four and an absolute one.
            path = unquote(parts.path.removeprefix("/"))
            if parts.netloc or not path:
                raise UnsupportedStore(f"{url!r} has no path: write sqlite:///file.db")
            return SqliteStore(Path(path), clock)
        case "postgresql" | "postgres":
            return open_postgres(url, clock)
    raise UnsupportedStore(
        f"there is no store for {parts.scheme or url!r}: use sqlite:///path,"
        " postgresql://user@host/database or memory://"
    )


def open_postgres(url: str, clock: Clock) -> Store:
    try:
        from holdfast.stores.postgres import PostgresStore
    except ImportError as error:
        raise UnsupportedStore(
            f"the driver for PostgreSQL is missing ({error}): pip install 'holdfast[postgres]'"
        ) from error
    return PostgresStore(url, clock)
