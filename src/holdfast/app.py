"""Holdfast: joins a store, an engine and the agents.

`async with app` opens the store and, unless `worker=None`, works in this process too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import msgspec

from holdfast.admission import (
    Inbox,
    Room,
    callback_value,
    check_token,
    checked_url,
    fingerprint,
    instant_of,
    keyed_token,
)
from holdfast.agents.agent import Agent
from holdfast.agents.model import ModelClient
from holdfast.agents.perform import AgentPerformer
from holdfast.agents.provider import ProviderModel
from holdfast.agents.subagent import family, kin_of
from holdfast.agents.surrounding import Surroundings
from holdfast.agents.thread import ToolThreads
from holdfast.agents.value import to_json
from holdfast.channel.channel import Channel
from holdfast.channel.inbound import InboundRequest, Received
from holdfast.channel.switchboard import Switchboard
from holdfast.clock import Clock
from holdfast.connection.comeback import Comeback
from holdfast.connection.connection import Connection
from holdfast.connection.opening import open_bureau
from holdfast.core.index import PEOPLE
from holdfast.core.message import Content, Said, content_of
from holdfast.core.name import MAIN, check_id, webhook_name
from holdfast.core.record import DeliveryQueued, Failure, SessionStarted, WebhookOpened
from holdfast.core.result import ChildEnd
from holdfast.engine.settings import WorkerSettings
from holdfast.engine.upkeep import bury
from holdfast.engine.worker import Worker
from holdfast.errors import (
    Conflict,
    InvalidDefinition,
    InvalidInput,
    NoActiveSession,
    TokenTaken,
    UnknownAgent,
    UnknownCallback,
    UnknownConnection,
    UnknownRequest,
    UnknownSession,
    UnknownWorker,
)
from holdfast.hook import Hooks
from holdfast.recall import Recall
from holdfast.schedule.roster import Roster
from holdfast.schedule.schedule import Schedule
from holdfast.schedule.standing import Standing
from holdfast.schedule.starter import Starter
from holdfast.schedule.timekeeper import INTERVAL, Timekeeper
from holdfast.session import Receipt, Request, Session, request_of
from holdfast.store import LaneInfo, RequestInfo, SessionInfo, Store, WorkerInfo
from holdfast.store import Receipt as StoreReceipt
from holdfast.stores.url import open_store
from holdfast.telemetry import Telemetry
from holdfast.telemetry.instrument import Instruments
from holdfast.telemetry.performer import ObservedPerformer
from holdfast.telemetry.store import ObservedStore
from holdfast.webhook.book import AddressBook
from holdfast.webhook.settings import WebhookSettings
from holdfast.webhook.signature import secrets_of, verify

if TYPE_CHECKING:
    from holdfast.server import ServerSettings

Out = TypeVar("Out")
Deps = Callable[[], AbstractAsyncContextManager[Any]]
HookFunction = TypeVar("HookFunction", bound=Callable[..., Any])

DEFAULT_STORE = "sqlite:///holdfast.db"
DEFAULT_WORKER = WorkerSettings()
DEFAULT_TELEMETRY = Telemetry()
NO_HEADERS: Mapping[str, str] = {}
UNKNOWN_CALLBACK = "this address leads nowhere: it was never given out, was used, or has expired"


class Holdfast:
    """An application: its agents, where their sessions are kept, and who works on them.

    At most `max_queued` messages wait in a session, and `max_queued_per_tenant` in all sessions
    of a tenant; one more is refused with QueueFull. 0 is any number. `public_url` is where this
    app's server is reached from outside: tools that wait for a webhook or a sign-in need it. What
    sign-ins to the `connections` give is sealed with the `secret_key`, the first of several. People
    talk to agents through `channels`.
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
        public_url: str = "",
        webhooks: WebhookSettings | None = None,
        schedules: Sequence[Schedule] = (),
        connections: Sequence[Connection] = (),
        secret_key: str | Sequence[str] = (),
        channels: Sequence[Channel] = (),
    ) -> None:
        self.agents = by_name(agents)
        self.clock = clock or Clock()
        self.store = open_store(store, self.clock) if isinstance(store, str) else store
        self._inbox = Inbox(self.store, self.clock, Room(max_queued, max_queued_per_tenant))
        self.settings = worker
        self.public_url = checked_url(public_url)
        self._hooks = Hooks()
        self._switchboard = Switchboard(
            channels, self.agents, self.store, self.clock, self._deliver, self._handle
        )
        self._recall = Recall(self.agents, self.store, lambda: self.public_url)
        self._book = AddressBook(
            self.agents, webhooks, self._hooks, self._switchboard, self._recall
        )
        self.webhooks = self._book.settings
        starter = Starter(self._inbox, self.clock, self._book.outlets)
        self._roster = Roster(schedules, self.agents, self.store, self.clock, starter)
        self._bureau = open_bureau(
            connections, secret_key, self.store, self.clock, lambda: self.public_url, self._reply
        )
        self.worker: Worker | None = None
        self._deps = deps
        self._telemetry = telemetry
        self._stack: AsyncExitStack | None = None

    # Life

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._stack is not None

    async def open(self) -> None:
        """Open the store and start working; the same as entering `async with app`."""
        if self._stack is not None:
            raise InvalidInput("this app is open already")
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.close)
            await self.store.migrate()
            if self._bureau:
                stack.push_async_callback(self._bureau.close)
            if self.settings is not None:
                agents = self._served(self.settings.agents)
                deps = await stack.enter_async_context(self._deps()) if self._deps else None
                performers = self._performers(agents, deps)
                for performer in performers.values():
                    stack.push_async_callback(performer.close)
                self.worker = self._observed_worker(performers, self.settings)
                self._send_webhooks(stack)
                await self.worker.start()
                stack.push_async_callback(self.worker.stop)
                self._keep_time(stack, self.settings)
            self._stack = stack.pop_all()

    def _send_webhooks(self, stack: AsyncExitStack) -> None:
        """Start the courier, where there is somebody to tell of anything."""
        if not self._book.is_empty:
            from holdfast.webhook.courier import Courier

            courier = Courier(self.store, self.clock, self._book)
            courier.start()
            stack.push_async_callback(courier.stop)

    def _keep_time(self, stack: AsyncExitStack, settings: WorkerSettings) -> None:
        """Start the timekeeper, where there are schedules to keep."""
        if self._roster.schedules:
            interval = min(INTERVAL, INTERVAL * settings.poll)
            timekeeper = Timekeeper(self.store, self.clock, self._roster, interval)
            timekeeper.start()
            stack.push_async_callback(timekeeper.stop)

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

    def asgi(self, settings: ServerSettings | None = None) -> Any:
        """Return this app's HTTP server: to be run by itself, or mounted in another ASGI app.

        Run by itself it opens this app and closes it at the end; the app that it is mounted in
        does so with `lifespan`.
        """
        try:
            from holdfast.server.asgi import create
        except ImportError as error:
            raise InvalidDefinition(
                f"the server is not installed ({error}): pip install 'holdfast[server]'"
            ) from error
        return create(self, settings)

    def _served(self, names: Sequence[str]) -> list[Agent[Any, Any]]:
        """Return the agents that this process works for: those named, or all."""
        return [self.agents[self._agent_name(name)] for name in names or self.agents]

    def _performers(
        self, agents: Sequence[Agent[Any, Any]], deps: Any
    ) -> dict[str, AgentPerformer]:
        threads = ToolThreads()
        kin = {name: kin_of(each, self._book.outlets(name)) for name, each in self.agents.items()}
        around = Surroundings(self.public_url, kin, self._hooks.deciders, self._bureau)
        return {
            agent.name: AgentPerformer(agent, client_of(agent), deps, threads, self.clock, around)
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
        deadline: datetime | timedelta | None = None,
        callback_url: str | None = None,
        callback_events: Sequence[str] | None = None,
        callback_secret: str = "",
    ) -> Session[Out]:
        """Start a session with a message; it is accepted for good when this returns.

        The same `dispatch_id` again returns the first session. `capabilities` may say
        `{"request_input": False}` where no human can be asked. At its `deadline` the session ends,
        and a turn that is open then fails. Events of the types in `callback_events` are posted
        to `callback_url`, signed with the `callback_secret`, or else with the app's own.
        """
        if mode not in ("conversation", "task"):
            raise InvalidInput(f'mode is "conversation" or "task", not {mode!r}')
        if dispatch_id is not None:
            check_id("dispatch_id", dispatch_id)
        if continuation_token is not None:
            check_token(continuation_token)
        name = self._agent_name(agent)
        started = SessionStarted(
            agent=name,
            mode=mode,
            can_ask=can_ask(capabilities or {}),
            tenant=check_id("tenant", tenant),
            principal=principal,
            token=continuation_token or self.clock.token(),
            deadline_at=instant_of(deadline, self.clock.now()),
            outlets=self._book.outlets(name, callback_url, callback_events),
        )
        if callback_secret and callback_url is None:
            raise InvalidInput("a callback_secret needs a callback_url whose events it signs")
        receipt = await self._inbox.start(
            started,
            content_of(message),
            lane=check_id("lane", lane),
            dispatch_id=dispatch_id,
            callback_secret="".join(secrets_of(callback_secret)),
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
        principal: str = "",
    ) -> Receipt[Any]:
        """Send a message to wherever a token leads; start a session there if an agent is given.

        The same `dispatch_id` again returns the first receipt, whichever of both it did.
        """
        return await self._deliver(
            check_token(continuation_token),
            message,
            agent=agent,
            dispatch_id=dispatch_id,
            tenant=check_id("tenant", tenant),
            principal=principal,
        )

    async def _deliver(
        self,
        given: str,
        message: Said,
        *,
        agent: Agent[Any, Any] | str | None,
        dispatch_id: str | None,
        tenant: str,
        principal: str,
    ) -> Receipt[Any]:
        content = content_of(message)
        mark = fingerprint("deliver", given, content)
        found = await self.store.find_token(tenant, given)
        if found is None and agent is None:
            raise NoActiveSession("no living session has this continuation token")
        if found is None and agent is not None:
            try:
                return await self._start_at(
                    given, agent, content, dispatch_id, tenant, mark, principal
                )
            except TokenTaken:
                found = await self.store.find_token(tenant, given)  # somebody was quicker
                if found is None:
                    raise
        assert found is not None
        session = self._handle(found)
        return await session.send(
            content, dispatch_id=dispatch_id, by=principal, scope="tenant", mark=mark
        )

    async def receive(self, channel: str, headers: Mapping[str, str], body: bytes) -> Received:
        """Take in what was posted to a channel, and say what became of it.

        The server does this at `/v1/channels/{name}`. What the channel cannot verify raises
        InvalidSignature and changes nothing; the same again returns the first receipt.
        """
        lower = {name.lower(): value for name, value in headers.items()}
        request = InboundRequest(headers=lower, body=body, at=self.clock.now() // 1000)
        return await self._switchboard.receive(channel, request)

    async def prompt(
        self,
        agent: Agent[Any, Any] | str,
        key: str,
        message: Said,
        *,
        dispatch_id: str | None = None,
        tenant: str = "default",
        principal: str = "",
    ) -> Receipt[Any]:
        """Send a message to the one session of an agent that has a key, and start it first if
        there is none. When that session is over, SessionOver is raised: use another key."""
        token = keyed_token(self._agent_name(agent), key)
        content = content_of(message)
        mark = fingerprint("prompt", token, content)
        found = await self.find(agent, key, tenant=tenant)
        if found is None:
            try:
                return await self._start_at(
                    token, agent, content, dispatch_id, tenant, mark, principal
                )
            except TokenTaken:
                found = await self.find(agent, key, tenant=tenant)  # somebody was quicker
                if found is None:
                    raise
        return await self._handle(found).send(
            content, dispatch_id=dispatch_id, by=principal, scope="tenant", mark=mark
        )

    async def find(
        self, agent: Agent[Any, Any] | str, key: str, *, tenant: str = "default"
    ) -> str | None:
        """Return the session of an agent that has a key, over or not."""
        token = keyed_token(self._agent_name(agent), key)
        return await self.store.find_token(check_id("tenant", tenant), token, living=False)

    async def callback(
        self,
        token: str,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Receipt[Any] | None:
        """Hand over what came in for a tool that waits for its webhook.

        The same body again returns the first receipt. To an address that was never given out,
        has been used or has expired, UnknownCallback is raised. Where the tool takes only what
        is signed, anything else raises InvalidSignature, and the address stays open; what is
        signed and comes later does nothing, and has no receipt.
        """
        request = await self.store.request(webhook_name(token))
        info = await self.store.session(request.session_id) if request else None
        if request is None or info is None:
            raise UnknownCallback(UNKNOWN_CALLBACK)
        opened = msgspec.json.decode(request.data, type=WebhookOpened)
        if opened.signer:
            verify(
                self._callback_secret(info.agent, opened, token), headers, body, clock=self.clock
            )
        reply = DeliveryQueued(
            delivery_id="",
            kind="reply",
            request_id=request.request_id,
            args=callback_value(body, content_type),
        )
        try:
            receipt = await self._reply(request, reply)
        except (Conflict, UnknownSession, UnknownRequest):
            if opened.signer:
                return None
            raise UnknownCallback(UNKNOWN_CALLBACK) from None
        return Receipt(self._handle(info.session_id), receipt)

    def _callback_secret(self, agent: str, opened: WebhookOpened, token: str) -> str:
        """Return what has to sign what comes in at an address, by the code of today."""
        tool = self.agents[agent].tools.get(opened.signer) if agent in self.agents else None
        if tool is None or tool.callback_secret is None:
            raise UnknownCallback(UNKNOWN_CALLBACK)
        return tool.callback_secret(token)

    async def _reply(self, request: RequestInfo, reply: DeliveryQueued) -> StoreReceipt:
        """Hand a reply from outside to whoever waits for it."""
        return await self._inbox.add(
            request.session_id,
            request.tenant,
            request.lane,
            reply,
            scope=f"request:{request.request_id}",
            dispatch_id="callback",
        )

    async def complete_authorization(
        self,
        connection: str,
        *,
        state: str,
        code: str = "",
        error: str = "",
        iss: str = "",
        tenant: str | None = None,
        principal: str | None = None,
    ) -> str:
        """Take in somebody who comes back from signing in, and say how that ended.

        What the provider put into the address is given as it is. `tenant` and `principal` say who
        brings it, where that is known: then it has to be whom the sign-in was asked of. Returns
        completed, denied, failed, again, expired, used, closed, mixed_up, stranger or unknown.
        """
        if self._bureau is None:
            return "unknown"
        back = Comeback(state, code, error, iss, tenant, principal)
        return await self._bureau.finish(connection, back)

    async def sign_out(
        self,
        connection: str,
        *,
        tenant: str = "default",
        principal: str = "",
        revoke: bool = True,
    ) -> bool:
        """Forget the token of a principal, or of the app, and say whether there was one.

        Where the connection has a `revoke_url`, the provider is told first; if that fails, nothing
        is forgotten, unless `revoke=False`.
        """
        if self._bureau is None:
            raise UnknownConnection("this app has no connections", connection=connection)
        account = self._bureau.account(connection, tenant, principal)
        return await self._bureau.sign_out(account, revoke=revoke)

    async def erase(self, session_id: str, *, recall: bool = True) -> None:
        """End a session and erase all that is known of it and of its children, for good.

        A worker that is at it is stopped as soon as it wants to record something. If another
        session waits for it, that is told. What it has going at remote agents is ended first; if
        one of those is away, Unreachable is raised and nothing is erased, unless
        `recall=False`.
        """
        if recall:
            await self._recall.all_below(session_id)
        await self._tell_parent(session_id)
        if not await self.store.erase(session_id):
            raise UnknownSession(f"there is no session {session_id}", session=session_id)
        await bury(self.store)

    async def _tell_parent(self, session_id: str) -> None:
        info = await self.store.session(session_id)
        if info is None or not info.parent or info.over:
            return
        started = (await self.store.read(session_id, 0, 1)).entries[0].record
        assert isinstance(started, SessionStarted)
        assert started.parent is not None
        reply = DeliveryQueued(
            delivery_id="",
            kind="reply",
            request_id=started.parent.request_id,
            args=to_json(ChildEnd(error=Failure("ERASED", "the session was erased"))),
        )
        with suppress(Conflict, UnknownSession, UnknownRequest):  # nobody waits for it any more
            await self._inbox.add(
                info.parent,
                info.tenant,
                started.parent.lane,
                reply,
                scope=f"request:{reply.request_id}",
                dispatch_id=None,
            )

    async def requests(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        kinds: Sequence[str] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[Request, ...]:
        """List open questions to humans across sessions, oldest first."""
        wanted = [kind for kind in PEOPLE if kinds is None or kind in kinds]
        found = await self.store.requests(
            tenant=tenant, agent=agent, kinds=wanted, after=after, limit=limit
        )
        return tuple(request_of(info) for info in found)

    async def _start_at(
        self,
        token: str,
        agent: Agent[Any, Any] | str,
        content: Content,
        dispatch_id: str | None,
        tenant: str,
        mark: str,
        principal: str,
    ) -> Receipt[Any]:
        name = self._agent_name(agent)
        started = SessionStarted(
            agent=name,
            tenant=tenant,
            token=token,
            principal=principal,
            outlets=self._book.outlets(name, token=token),
        )
        receipt = await self._inbox.start(
            started, content, lane=MAIN, dispatch_id=dispatch_id, mark=mark, by=principal
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

    # Schedules

    async def schedules(self) -> tuple[Standing, ...]:
        """List the schedules of this app and of its store by name, with when they are due."""
        return await self._roster.standings()

    async def trigger(self, schedule: str, *, dispatch_id: str | None = None) -> Session[Any]:
        """Start a session of a schedule now, besides its instants, even if it is paused."""
        if dispatch_id is not None:
            check_id("dispatch_id", dispatch_id)
        receipt = await self._roster.trigger(schedule, dispatch_id)
        return self._handle(receipt.session_id, receipt)

    async def pause_schedule(self, schedule: str) -> None:
        """Let a schedule fire no more until it is resumed, whichever worker keeps it."""
        await self._roster.pause(schedule)

    async def resume_schedule(self, schedule: str) -> None:
        """Let a schedule go on with its next instant; what passed meanwhile is not made up for."""
        await self._roster.resume(schedule)

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

    # Hooks

    def hook(
        self, *events: str, decides: bool = False, tools: Sequence[str] = (), name: str = ""
    ) -> Callable[[HookFunction], HookFunction]:
        """Have a function told of events after they are in the log, at least once and in order.

        It is given the Event; what it raises has it told again. With `decides` it is asked about
        tool calls before these are recorded, all or those of `tools`: it is given a Proposed
        call and returns a Decision. Hooks are for sessions that are started afterwards.
        """

        def register(function: HookFunction) -> HookFunction:
            if decides:
                self._hooks.decide(function, events, tools, name)
            else:
                self._hooks.observe(function, events, name)
            return function

        return register

    def _agent_name(self, agent: Agent[Any, Any] | str) -> str:
        name = agent if isinstance(agent, str) else getattr(agent, "name", "")
        if name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise UnknownAgent(f"this app has no agent {name!r}; it has: {known}", agent=name)
        return str(name)


def by_name(agents: Sequence[Agent[Any, Any]]) -> dict[str, Agent[Any, Any]]:
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidDefinition(f"a {type(agent).__name__} is not an Agent")
    names = [agent.name for agent in agents]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidDefinition(f"two agents are named {twice}", agent=twice)
    return family(agents)


def can_ask(capabilities: Mapping[str, bool]) -> bool:
    unknown = set(capabilities) - {"request_input"}
    if unknown:
        raise InvalidInput(f"there is no capability {', '.join(sorted(unknown))}")
    return bool(capabilities.get("request_input", True))


def client_of(agent: Agent[Any, Any]) -> ModelClient:
    """Return the agent's model; a provider's is loaded when it is first called."""
    model: Any = agent.model
    return cast(ModelClient, model) if hasattr(model, "classify") else ProviderModel(model)
