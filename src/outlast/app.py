"""Outlast: joins a store, an engine and the agents.

`async with app` opens the store and, unless `worker=None`, works in this process too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from typing_extensions import TypeVar

from outlast.agents.agent import Agent
from outlast.agents.hook import Hooks, check_named
from outlast.agents.registry import agents_by_name, name_of, proxies_of
from outlast.agents.runtime.environment import Environment
from outlast.agents.subagent import ref_of
from outlast.agents.subscription import StartingSession
from outlast.clock import Clock
from outlast.core.index import PEOPLE
from outlast.core.message import Said
from outlast.core.name import MAIN, check_dispatch, check_token, check_who, is_id
from outlast.core.setting import count_of, settings_of
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.errors import (
    InvalidDefinition,
    InvalidInput,
    StoreUnavailable,
    UnknownConnection,
    UnknownSession,
    UnknownWorker,
)
from outlast.integration.channel.channel import Channel
from outlast.integration.channel.directory import channels_by_name
from outlast.integration.channel.inbound import InboundRequest, ReceivedRequest
from outlast.integration.channel.receiver import ChannelReceiver
from outlast.integration.channel.sender import ChannelSenders
from outlast.integration.connection import Connection, open_connections
from outlast.integration.connection.oauth_callback import OAuthCallback
from outlast.integration.outbox.consumer import OutboxRoutes
from outlast.integration.outbox.settings import WebhookSettings
from outlast.integration.outbox.webhook import WebhookConsumer
from outlast.integration.remote.cancellation import RemoteCanceller
from outlast.integration.schedule.launch import ScheduleLauncher
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.schedules import Schedules
from outlast.integration.schedule.status import ScheduleStatus
from outlast.integration.telemetry import Telemetry
from outlast.runtime import Deps, Runtime
from outlast.session import Receipt, Request, Session, request_of
from outlast.session.callback import Callbacks
from outlast.session.erase import SessionEraser
from outlast.session.inbox import Inbox, QueueLimits, checked_url
from outlast.session.router import SessionRouter
from outlast.session.start import NewSession, SessionMode, SessionStarter, Webhook
from outlast.store import LaneInfo, SessionInfo, Store, WorkerInfo
from outlast.stores.url import store_of

if TYPE_CHECKING:
    from outlast.server import ServerSettings

Out = TypeVar("Out", default=Any)
HookFunction = TypeVar("HookFunction", bound=Callable[..., Any])

DEFAULT_STORE = "sqlite:///outlast.db"
DEFAULT_WORKER = WorkerSettings()
DEFAULT_TELEMETRY = Telemetry()
NO_HEADERS: Mapping[str, str] = {}
Status = Literal["running", "queued", "waiting", "sleeping", "idle", "completed", "failed", "ended"]
"""How a session, or a lane of one, stands."""
STATUSES: tuple[str, ...] = get_args(Status)
MOST = 1_000_000
"""How many can be listed at once."""


class Outlast:
    """An application: its agents, where their sessions are kept, and who works on them.

    At most `max_queued` messages wait in a session, and `max_queued_per_tenant` in all sessions
    of a tenant; one more is refused with QueueFull. 0 is any number. `public_url` is where this
    app's server is reached from outside: tools that wait for a callback or a sign-in need it. What
    sign-ins to the `connections` give is encrypted with the `secret_key`, the first of several.
    People talk to agents through `channels`.
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
        self.agents = agents_by_name(agents)
        self._proxies = proxies_of(self.agents)
        self.clock = clock or Clock()
        self.store = store_of(store, self.clock)
        self._opens_store = isinstance(store, str)
        self.settings = settings_of(WorkerSettings, "worker", worker)
        self.worker: Worker | None = None
        self.public_url = checked_url(public_url)
        self._stack: AsyncExitStack | None = None
        self._is_opening = False
        room = QueueLimits(
            count_of("max_queued", max_queued, least=0),
            count_of("max_queued_per_tenant", max_queued_per_tenant, least=0),
        )
        self._inbox = Inbox(self.store, self.clock, room)
        self._join(channels_by_name(channels, self.agents), webhooks)
        launcher = ScheduleLauncher(self._inbox, self.clock, self._starter)
        self._roster = Schedules(schedules, self.agents, self.store, self.clock, launcher)
        self._connections = open_connections(
            connections,
            secret_key,
            self.store,
            self.clock,
            lambda: self.public_url,
            self._inbox.reply,
        )
        self._workshop = Runtime(
            self.agents,
            self._proxies,
            self.store,
            self.clock,
            deps,
            settings_of(Telemetry, "telemetry", telemetry),
            self._surroundings,
        )

    def _join(self, channels: Mapping[str, Channel], webhooks: WebhookSettings | None) -> None:
        """Join those who bring messages to sessions and those who tell of what became of them."""
        agents, store, clock, inbox = self.agents, self.store, self.clock, self._inbox
        everybody = {**agents, **self._proxies}
        canceller = RemoteCanceller(everybody, store, lambda: self.public_url)
        senders = ChannelSenders(channels, agents, store, clock)
        self._hooks = Hooks(name for each in everybody.values() for name in each.tools)
        settings = settings_of(WebhookSettings, "webhooks", webhooks)
        poster = WebhookConsumer(everybody, settings, store, clock)
        self.webhooks = poster.settings
        self._outbox = OutboxRoutes(everybody, (poster, self._hooks, senders, canceller))
        self._starter = SessionStarter(inbox, clock, self._outbox.cursors)
        self.router = SessionRouter(agents, self._proxies, store, clock, inbox, self._starter)
        self._switchboard = ChannelReceiver(channels, store, self.router)
        self._callbacks = Callbacks(everybody, store, clock, inbox, self.router.handle)
        self._erasure = SessionEraser(store, inbox, canceller.all_below)

    # Life

    @property
    def is_open(self) -> bool:
        """Whether it was opened, and not closed since."""
        return self._stack is not None

    async def open(self) -> None:
        """Open the store and start working; the same as entering `async with app`."""
        if self._stack is not None or self._is_opening:
            raise InvalidInput("this app is open already")
        self._is_opening = True
        try:
            self._stack = await self._open()
        finally:
            self._is_opening = False

    async def _open(self) -> AsyncExitStack:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.store.close)
            await self.store.migrate()
            if self._connections:
                stack.push_async_callback(self._connections.close)
            if self.settings is not None:
                self.worker = await self._workshop.hire(self.settings, stack)
                self._workshop.start_outbox(self._outbox, self.webhooks, stack)
                await self.worker.start()
                stack.push_async_callback(self.worker.stop)
                self._workshop.keep_time(self._roster, self.settings, stack)
            return stack.pop_all()

    def _check_open(self) -> None:
        """Refuse what would be taken by nobody; a store that was given may be open without us."""
        if self._opens_store and not self.is_open:
            raise StoreUnavailable(
                "this app is not open: use it inside `async with app`, or open() it first"
            )

    def _surroundings(self) -> Environment:
        """Return what tools may reach: hooks and the app's address may have come late."""
        known = {**self.agents, **self._proxies}
        kin = {
            name: ref_of(each, self._outbox.cursors(StartingSession(name)))
            for name, each in known.items()
        }
        return Environment(self.public_url, kin, self._hooks.deciders, self._connections)

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
            from outlast.server.asgi import create
        except ImportError as error:
            raise InvalidDefinition(
                f"the server is not installed ({error}): install Outlast with its extra 'server'"
            ) from error
        return create(self, settings)

    # Sessions

    async def start(
        self,
        agent: Agent[Any, Out] | str,
        message: Said,
        *,
        mode: SessionMode = "conversation",
        dispatch_id: str | None = None,
        continuation_token: str | None = None,
        lane: str = MAIN,
        tenant: str = "default",
        principal: str = "",
        capabilities: Mapping[str, bool] | None = None,
        deadline: datetime | timedelta | None = None,
        webhook: Webhook | None = None,
    ) -> Session[Out]:
        """Start a session with a message; it is accepted for good when this returns.

        The same `dispatch_id` again returns the first session. `capabilities` may say
        `{"request_input": False}` where no human can be asked. At its `deadline` the session ends,
        and a turn that is open then fails. Its events are posted to the `webhook`.
        """
        self._check_open()
        return await self.router.start(
            NewSession(
                agent=name_of(agent, self.agents),
                message=message,
                mode=mode,
                dispatch_id=dispatch_id,
                continuation_token=continuation_token,
                lane=lane,
                tenant=tenant,
                principal=principal,
                capabilities=capabilities,
                deadline=deadline,
                webhook=webhook,
            )
        )

    async def session(self, session_id: str) -> Session[Any]:
        """Return a handle on a session that exists."""
        if not is_id(session_id) or await self.store.listing.session(session_id) is None:
            raise UnknownSession(f"there is no session {session_id}", session=session_id)
        return self.router.handle(session_id)

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
        self._check_open()
        return await self.router.deliver(
            check_token(continuation_token),
            message,
            agent=agent,
            dispatch_id=dispatch_id,
            tenant=tenant,
            principal=principal,
        )

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
        self._check_open()
        return await self.router.prompt(
            agent, key, message, dispatch_id=dispatch_id, tenant=tenant, principal=principal
        )

    async def find(
        self, agent: Agent[Any, Any] | str, key: str, *, tenant: str = "default"
    ) -> str | None:
        """Return the session of an agent that has a key, over or not."""
        return await self.router.find(agent, key, tenant)

    async def erase(self, session_id: str, *, cancel_remote: bool = True) -> None:
        """End a session and erase all that is known of it and of its children, for good.

        A worker that is at it is stopped as soon as it wants to record something. If another
        session waits for it, that is told. What it has going at remote agents is ended first; if
        one of those is away, Unreachable is raised and nothing is erased, unless
        `cancel_remote=False`.
        """
        if not is_id(session_id):
            raise UnknownSession(f"there is no session {session_id!r}", session=str(session_id))
        await self._erasure.erase(session_id, cancel_remote=cancel_remote)

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
        found = await self.store.listing.requests(
            tenant=check_sought("tenant", tenant),
            agent=check_sought("agent", agent),
            kinds=check_kinds(kinds),
            after=check_sought("request", after),
            limit=check_limit(limit),
        )
        return tuple(request_of(info) for info in found)

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
        return await self.store.listing.sessions(
            tenant=check_sought("tenant", tenant),
            agent=check_sought("agent", agent),
            status=check_status(status),
            before=check_sought("session", before),
            limit=check_limit(limit),
        )

    # From outside

    async def receive(
        self, channel: str, headers: Mapping[str, str], body: bytes
    ) -> ReceivedRequest:
        """Take in what was posted to a channel, and say what became of it.

        The server does this at `/v1/channels/{name}`. What the channel cannot verify raises
        InvalidSignature and changes nothing; the same again returns the first receipt.
        """
        lower = {name.lower(): value for name, value in headers.items()}
        request = InboundRequest(headers=lower, body=body, at=self.clock.now() // 1000)
        return await self._switchboard.receive(channel, request)

    async def callback(
        self,
        token: str,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Receipt[Any] | None:
        """Hand over what came in for a tool that waits for its callback.

        The same body again returns the first receipt. To an address that was never given out,
        has been used or has expired, UnknownCallback is raised. Where the tool takes only what
        is signed, anything else raises InvalidSignature, and the address stays open; what is
        signed and comes later does nothing, and has no receipt.
        """
        return await self._callbacks.take(token, body, content_type, headers)

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
        brings it, where you know people: then it has to be whom the sign-in was asked of, and a
        `principal` of "" is nobody. Returns completed, denied, failed, again, expired, used,
        closed, mixed_up, stranger, anonymous or unknown.
        """
        if self._connections is None:
            return "unknown"
        back = OAuthCallback(state, code, error, iss, tenant, principal)
        return await self._connections.finish(connection, back)

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
        if self._connections is None:
            raise UnknownConnection("this app has no connections", connection=connection)
        account = self._connections.account(connection, tenant, principal)
        return await self._connections.sign_out(account, revoke=revoke)

    # Schedules

    async def schedules(self) -> tuple[ScheduleStatus, ...]:
        """List the schedules of this app and of its store by name, with when they are due."""
        return await self._roster.standings()

    async def trigger(self, schedule: str, *, dispatch_id: str | None = None) -> Session[Any]:
        """Start a session of a schedule now, besides its instants, even if it is paused."""
        receipt = await self._roster.trigger(schedule, check_dispatch(dispatch_id))
        return self.router.handle(receipt.session_id, receipt)

    async def pause_schedule(self, schedule: str) -> None:
        """Let a schedule fire no more until it is resumed, whichever worker keeps it."""
        await self._roster.pause(schedule)

    async def resume_schedule(self, schedule: str) -> None:
        """Let a schedule go on with its next instant; what passed meanwhile is not made up for."""
        await self._roster.resume(schedule)

    # The fleet

    async def workers(self) -> Sequence[WorkerInfo]:
        """List the living workers of this store, oldest first."""
        return await self.store.work.workers()

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
        return await self.store.listing.lanes(
            session_id=check_sought("session", session_id),
            tenant=check_sought("tenant", tenant),
            agent=check_sought("agent", agent),
            status=check_status(status),
            worker=check_sought("worker", worker),
            after=check_place(after),
            limit=check_limit(limit),
        )

    async def drain(self, worker: str) -> None:
        """Ask a worker, wherever it runs, to hand back its lanes and stop."""
        if not (is_id(worker) and await self.store.work.drain(worker)):
            raise UnknownWorker(f"no living worker is called {worker}", worker=worker)

    # Hooks

    def hook(
        self, *events: str, decides: bool = False, tools: Sequence[str] = (), name: str = ""
    ) -> Callable[[HookFunction], HookFunction]:
        """Have a function told of events after they are in the log, at least once and in order.

        It is given the Event; what it raises has it told again. With `decides` it is asked about
        tool calls before these are recorded, all or those of `tools`: it is given a Proposed
        call and returns a Decision. Hooks come before the app is opened; they observe sessions that
        are started afterwards.
        """
        if self.is_open:
            raise InvalidInput("this app is open already: add its hooks before")
        check_named(events)

        def register(function: HookFunction) -> HookFunction:
            if decides:
                self._hooks.decide(function, events, tools, name)
            elif tools:
                raise InvalidDefinition(
                    "a hook is told of all events of its types: tools= is for one that decides"
                )
            else:
                self._hooks.observe(function, events, name)
            return function

        return register


def check_kinds(kinds: Any) -> Sequence[str]:
    """Return the kinds of questions that are wanted, by default all."""
    if kinds is None:
        return PEOPLE
    is_several = isinstance(kinds, Iterable) and not isinstance(kinds, str)
    wanted = list(kinds) if is_several else [kinds]
    if not is_several or any(kind not in PEOPLE for kind in wanted):
        raise InvalidInput(f"kinds are a list of some of {', '.join(PEOPLE)}, not {kinds!r}")
    return tuple(kind for kind in PEOPLE if kind in wanted)


def check_limit(limit: Any) -> int:
    """Return how many are listed, if that many can be."""
    if not isinstance(limit, int) or not 1 <= limit <= MOST:
        raise InvalidInput(f"a limit is a whole number from 1 to {MOST:,}, not {limit!r}")
    return limit


def check_sought(what: str, value: Any) -> str | None:
    """Return what is looked for by its name, or that it does not matter."""
    return None if value is None else check_who(what, value)


def check_status(status: Any) -> str | None:
    """Return how what is looked for stands, or that it does not matter."""
    if status is not None and status not in STATUSES:
        raise InvalidInput(f"a status is one of {', '.join(STATUSES)}, not {status!r}")
    return None if status is None else str(status)


def check_place(after: Any) -> tuple[str, str] | None:
    """Return the session and lane behind which a list goes on."""
    if after is None:
        return None
    if not isinstance(after, tuple | list) or len(after) != 2 or not all(map(is_id, after)):
        raise InvalidInput(f"a list goes on after a session and a lane of it, not {after!r}")
    return after[0], after[1]
