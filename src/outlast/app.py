"""Outlast: joins a store, an engine and the agents.

`async with app` opens the store and, unless `worker=None`, works in this process too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from typing_extensions import TypeVar

from outlast.agents.agent import Agent, agents_by_name, name_of, remotes_of
from outlast.agents.budget import Budget
from outlast.agents.hook import Hooks, check_named
from outlast.agents.prompt.render import RenderedPrompt
from outlast.agents.runtime.environment import Environment
from outlast.agents.subagent import ref_of
from outlast.agents.subscription import StartingSession
from outlast.clock import Clock
from outlast.core.instant import Span
from outlast.core.lane import StartMode, Status
from outlast.core.message import Said
from outlast.core.name import MAIN, is_id
from outlast.core.setting import count_of, group_of, listed, settings_of
from outlast.core.tag import check_tags
from outlast.engine.settings import WorkerSettings
from outlast.engine.worker import Worker
from outlast.errors import (
    InvalidDefinition,
    InvalidInput,
    StoreUnavailable,
    UnknownRun,
    UnknownSession,
)
from outlast.integration.channel.channel import Channel, channels_by_name
from outlast.integration.channel.receiver import ChannelReceiver
from outlast.integration.channel.sender import ChannelSenders
from outlast.integration.connection import ConnectionSettings, open_connections
from outlast.integration.connection.control import ConnectionControl
from outlast.integration.outbox.consumer import OutboxRoutes
from outlast.integration.outbox.settings import WebhookSettings
from outlast.integration.outbox.webhook import WebhookConsumer
from outlast.integration.remote.cancellation import RemoteCanceller
from outlast.integration.schedule.launch import ScheduleLauncher
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.schedule.schedules import ScheduleControl, Schedules
from outlast.integration.telemetry import Telemetry
from outlast.runtime import Deps, Runtime, open_soon
from outlast.session import Receipt, Request, Session, request_of
from outlast.session.budget import BudgetControl
from outlast.session.bulk import BulkControl
from outlast.session.callback import Callbacks
from outlast.session.code_check import CodeFinding, check_code
from outlast.session.deployment import DeploymentControl
from outlast.session.erase import SessionEraser
from outlast.session.inbox import Inbox, QueueLimits, checked_url
from outlast.session.listing import (
    WorkerControl,
    check_cursor,
    check_failed,
    check_kinds,
    check_limit,
    check_request_cursor,
    check_sought,
    check_status,
)
from outlast.session.provider import ProviderControl
from outlast.session.queue import QueueControl, QueueEntry, SessionPlaces
from outlast.session.request import RequestKind
from outlast.session.router import Key, SessionRouter, Token
from outlast.session.run import Run, RunStatus
from outlast.session.run_list import RunSummary, list_runs
from outlast.session.start import NewSession, SessionStarter, Webhook
from outlast.session.state import render_prompt
from outlast.session.usage import UsageControl
from outlast.store import SessionInfo, Store
from outlast.stores.url import store_of
from outlast.workflows.registry import WorkflowRef, find_workflow, workflows_by_name
from outlast.workflows.workflow import Workflow

if TYPE_CHECKING:
    from outlast.server import ServerSettings

In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)
HookFunction = TypeVar("HookFunction", bound=Callable[..., Any])

DEFAULT_STORE = "sqlite:///outlast.db"
DEFAULT_WORKER = WorkerSettings()
DEFAULT_TELEMETRY = Telemetry()
DEFAULT_QUEUE = QueueLimits(session=1000)


class Outlast:
    """An application: its agents, the store of their sessions, and the worker in this process.

    Args:
        agents: The agents and workflows.
        store: A URL (`sqlite:///file.db`, `postgresql://…`, `memory://`) or a Store.
        worker: How this process works; None if it only starts and reads sessions.
        deps: Returns an async context manager, opened once per worker, for `ctx.deps`.
        telemetry: Traces and metrics; None turns them off.
        clock: For tests.
        queue_limits: How many messages may wait, and how large a session may be.
        public_url: Where this app's server is reached from outside. Tools that wait for a callback
            or a sign-in need it.
        webhooks: How events are posted; without it, webhook URLs are refused.
        schedules: Sessions that start by the clock.
        connections: Services at which tools act in somebody's name.
        channels: Places where people talk to agents.
    """

    def __init__(
        self,
        agents: Sequence[Agent[Any, Any] | Workflow[Any, Any]] = (),
        *,
        store: str | Store = DEFAULT_STORE,
        worker: WorkerSettings | None = DEFAULT_WORKER,
        deps: Deps | None = None,
        telemetry: Telemetry | None = DEFAULT_TELEMETRY,
        clock: Clock | None = None,
        queue_limits: QueueLimits = DEFAULT_QUEUE,
        public_url: str = "",
        webhooks: WebhookSettings | None = None,
        schedules: Sequence[Schedule] = (),
        connections: ConnectionSettings | None = None,
        channels: Sequence[Channel] = (),
    ) -> None:
        flows = [each for each in listed("agents", agents) if isinstance(each, Workflow)]
        self.agents = agents_by_name([each for each in agents if not isinstance(each, Workflow)])
        self.workflows = workflows_by_name(flows, self.agents)
        self.clock = clock or Clock()
        self.store = store_of(store, self.clock)
        self._opens_store = isinstance(store, str)
        self.settings = settings_of(WorkerSettings, "worker", worker)
        self.worker: Worker | None = None
        self.public_url = checked_url(public_url)
        self._stack: AsyncExitStack | None = None
        self._is_opening = False
        room = checked_queue(queue_limits)
        self._inbox = Inbox(self.store, self.clock, room, is_traced=telemetry is not None)
        self._join(channels_by_name(channels, self.agents), webhooks)
        launcher = ScheduleLauncher(self._inbox, self._starter, self.workflows)
        self._schedules = Schedules(schedules, self.agents, self.store, launcher, self.workflows)
        self.schedules: ScheduleControl = ScheduleControl(self._schedules, self._router.handle)
        self.workers: WorkerControl = WorkerControl(self.store)
        self.providers: ProviderControl = ProviderControl(self.store)
        self.queues: QueueControl = QueueControl(self.store)
        self.deployments: DeploymentControl = DeploymentControl(self.store)
        self.bulk: BulkControl = BulkControl(self.store, self._inbox)
        self.usage: UsageControl = UsageControl(self.store)
        self.budgets: BudgetControl = BudgetControl(self.store)
        self._connections = open_connections(
            connections,
            self.store,
            self.clock,
            lambda: self.public_url,
            self._inbox.reply,
        )
        self.connections: ConnectionControl = ConnectionControl(lambda: self._connections)
        self.channels: ChannelReceiver = self._channels
        self.callbacks: Callbacks = self._callbacks
        self._runtime = Runtime(
            self.agents,
            self.store,
            self.clock,
            deps,
            settings_of(Telemetry, "telemetry", telemetry),
            self._environment,
            queue_limits.session_bytes,
            self.workflows,
        )

    def _join(self, channels: Mapping[str, Channel], webhooks: WebhookSettings | None) -> None:
        """Build the router of messages to sessions and the routes of events out of them."""
        agents, store, clock, inbox = self.agents, self.store, self.clock, self._inbox
        canceller = RemoteCanceller(agents, store, lambda: self.public_url)
        senders = ChannelSenders(channels, agents, store, clock, self._anchor)
        self._hooks = Hooks(name for each in agents.values() for name in each.tools)
        settings = settings_of(WebhookSettings, "webhooks", webhooks)
        poster = WebhookConsumer(agents, settings, store, clock)
        self.webhooks = poster.settings
        self._anchors = senders.of_token
        # Hooks are added later; channels and remote agents are known here or never.
        others = [each for each in (senders, canceller) if not each.is_empty]
        self._outbox = OutboxRoutes({**agents, **self.workflows}, (poster, self._hooks, *others))
        queues = {name: agent.queue for name, agent in agents.items()}
        queues |= {name: flow.queue for name, flow in self.workflows.items()}
        places = SessionPlaces(store, lambda name: queues.get(name, ""))
        self._starter = SessionStarter(inbox, clock, self._outbox.cursors, places)
        self._router = SessionRouter(agents, store, clock, inbox, self._starter)
        self._channels = ChannelReceiver(channels, store, clock, self._router)
        self._callbacks = Callbacks(agents, store, clock, inbox, self._router.handle)
        self._erasure = SessionEraser(store, inbox, canceller.all_below)

    async def _anchor(self, session_id: str, channel: str, thread: str, *, dispatch_id: str) -> Any:
        """Anchor a session where its channel has said: the receiver is made after the senders."""
        return await self._channels.anchor(session_id, channel, thread, dispatch_id=dispatch_id)

    # Life

    @property
    def is_open(self) -> bool:
        """Whether the app was opened, and not closed since."""
        return self._stack is not None

    async def open(self) -> None:
        """Open the store and start working; the same as entering `async with app`."""
        if self._stack is not None or self._is_opening:
            raise InvalidInput("this app is already open: open it once, or make another one")
        self._is_opening = True
        try:
            self._stack = await open_soon(self._open, self.settings, self.clock)
        finally:
            self._is_opening = False

    async def _open(self) -> AsyncExitStack:
        async with AsyncExitStack() as stack:
            # Before it is opened: a migration that fails in the middle leaves connections, too.
            stack.push_async_callback(self.store.close)
            await self.store.migrate()
            if self._connections:
                stack.push_async_callback(self._connections.close)
            if self.settings is not None:
                self.worker = await self._runtime.create_worker(self.settings, stack)
                # Before the worker: the stack is left in reverse, so events of its last commits are
                # still delivered.
                self._runtime.start_outbox(self._outbox, self.webhooks, stack)
                await self.worker.start()
                stack.push_async_callback(self.worker.stop)
                self._runtime.start_scheduler(self._schedules, self.settings, stack)
            # Only now: what fails on the way closes all that was opened before it.
            return stack.pop_all()

    def _check_open(self) -> None:
        """Refuse calls on a closed app; a store that was passed in may be open without it."""
        # A store of the caller's own says itself whether it is open.
        if self._opens_store and not self.is_open:
            raise StoreUnavailable(
                "this app is not open: use it inside `async with app`, or open() it first"
            )

    def _environment(self) -> Environment:
        """Return what tools may reach: hooks and the app's address may have come late."""
        remotes = remotes_of(self.agents)
        agents = {
            name: ref_of(each, self._outbox.cursors(StartingSession(name)))
            for name, each in self.agents.items()
        }
        agents |= {name: remote.ref() for name, remote in remotes.items()}
        return Environment(
            self.public_url,
            agents,
            self._hooks.deciders,
            self._connections,
            remotes,
            workflows={
                name: WorkflowRef(each, self._outbox.cursors(StartingSession(name)))
                for name, each in self.workflows.items()
            },
            anchors=self._anchors,
        )

    async def close(self) -> None:
        """Hand back all lanes and close the store."""
        # First: nothing begins in an app that is closing.
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
        """Return this app's HTTP server: run it by itself, or mount it in another ASGI app.

        Run by itself, it opens this app and closes it at the end. Mounted in another app, that one
        has to do so with `lifespan`.
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
        mode: StartMode = "conversation",
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        continuation_token: str | None = None,
        lane: str = MAIN,
        tenant: str = "default",
        principal: str = "",
        capabilities: Mapping[str, bool] | None = None,
        deadline: datetime | timedelta | None = None,
        budget: Budget | None = None,
        webhook: Webhook | None = None,
        tags: Mapping[str, str] | None = None,
        queue: str | QueueEntry | None = None,
    ) -> Session[Out]:
        """Start a session with a message; the message is durable when this returns.

        The same `dispatch_id` again returns the first session; with `retry_failed` its turn is
        tried again if it has failed, once per failed turn. Use `capabilities={"request_input":
        False}` if no human can be asked. At the `deadline` the session ends, and an open turn
        fails. The `budget` bounds the session with all that it starts; the agent's own budget holds
        as well. Events are posted to the `webhook`. `tags` are texts to find the session by. Its
        turns wait in the `queue` for a place.
        """
        self._check_open()
        return await self._router.start(
            NewSession(
                agent=name_of(agent, self.agents),
                message=message,
                mode=mode,
                dispatch_id=dispatch_id,
                retry_failed=retry_failed,
                continuation_token=continuation_token,
                lane=lane,
                tenant=tenant,
                principal=principal,
                capabilities=capabilities,
                deadline=deadline,
                budget=budget,
                webhook=webhook,
                tags=tags,
                queue=queue,
            )
        )

    async def run(
        self,
        workflow: Workflow[In, Out] | str,
        input: In | None = None,
        *,
        dispatch_id: str | None = None,
        delay: Span = 0.0,
        deadline: datetime | timedelta | None = None,
        tags: Mapping[str, str] | None = None,
        tenant: str = "default",
        principal: str = "",
        capabilities: Mapping[str, bool] | None = None,
        webhook: Webhook | None = None,
        queue: str | QueueEntry | None = None,
    ) -> Run[Out]:
        """Start a run of a workflow; the run is durable when this returns.

        The same `dispatch_id` again returns the first run, also after it has ended; with another
        input it raises DispatchConflict. The body begins after the `delay`. At the `deadline` the
        run errors. `tags`, `capabilities`, `webhook` and `queue` are as for `start`.
        """
        self._check_open()
        known = find_workflow(workflow, self.workflows)
        receipt = await self._router.run(
            NewSession(
                agent=known.name,
                message="",
                mode="run",
                input=known.input_text(input),
                dispatch_id=dispatch_id,
                delay=delay,
                deadline=deadline,
                tags=tags,
                tenant=tenant,
                principal=principal,
                capabilities=capabilities,
                webhook=webhook,
                queue=queue,
            )
        )
        return Run(receipt.session, self.workflows, self._router.run, receipt)

    async def get_run(self, run_id: str) -> Run[Any]:
        """Return a handle on a run; UnknownRun if there is none."""
        info = await self.store.listing.session(run_id) if is_id(run_id) else None
        if info is None or info.mode != "run":
            raise UnknownRun(f"there is no run {run_id}", run=str(run_id))
        return Run(self._router.handle(run_id), self.workflows, self._router.run)

    async def session(self, session_id: str) -> Session[Any]:
        """Return a handle on a session; UnknownSession if there is none."""
        if not is_id(session_id) or await self.store.listing.session(session_id) is None:
            raise UnknownSession(f"there is no session {session_id}", session=session_id)
        return self._router.handle(session_id)

    async def send(
        self,
        to: Token | Key,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        tenant: str = "default",
        principal: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> Receipt[Any]:
        """Send a message to an address; start a session there if there is none.

        A `Token` leads to a living session, and starts one only if it names an agent. A `Key` is
        the one session of an agent with that key; when that is over, SessionOver is raised: use
        another key. The same `dispatch_id` again returns the first receipt; with `retry_failed` the
        message's turn is tried again if it has failed, and the receipt is that of the retry. A
        session that this starts gets the `tags`. If you know the session's id, use `Session.send`.
        """
        self._check_open()
        return await self._router.send(
            to,
            message,
            dispatch_id=dispatch_id,
            tenant=tenant,
            principal=principal,
            retry_failed=retry_failed,
            tags=tags,
        )

    async def find(self, key: Key, *, tenant: str = "default") -> str | None:
        """Return the id of the session that has a key, over or not; None if there is none."""
        return await self._router.find(key, tenant)

    async def erase(self, session_id: str, *, cancel_remote: bool = True) -> None:
        """End a session and erase it with its children, for good.

        A worker that carries it is refused its next commit. A session that waits for it is told.
        Its sessions at remote agents are ended first: if one of those servers is away, Unreachable
        is raised and nothing is erased, unless `cancel_remote=False`.
        """
        if not is_id(session_id):
            raise UnknownSession(f"there is no session {session_id!r}", session=str(session_id))
        await self._erasure.erase(session_id, cancel_remote=cancel_remote)

    async def requests(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        kinds: Sequence[RequestKind] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[Request, ...]:
        """List open questions to humans across sessions, oldest first."""
        found = await self.store.listing.requests(
            tenant=check_sought("tenant", tenant),
            agent=check_sought("agent", agent),
            kinds=check_kinds(kinds),
            after=await check_request_cursor(self.store, tenant, after, "after"),
            limit=check_limit(limit),
        )
        return tuple(request_of(info) for info in found)

    async def sessions(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        tags: Mapping[str, str] | None = None,
        failed: bool = False,
        code: str | None = None,
        queue: str | None = None,
        since: datetime | timedelta | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[SessionInfo]:
        """List sessions, newest first; runs of workflows are listed by `runs`.

        With `tags`, only those that were started with all of them. With `failed`, only those whose
        last turn failed: with this `code`, in this `queue`, at this instant or later (a `timedelta`
        counts back from now). Each says why in its `failure`.
        """
        sought: dict[str, Any] = {
            "tenant": check_sought("tenant", tenant),
            "agent": check_sought("agent", agent),
            "status": check_status(status),
            "tags": check_tags(tags),
            "kind": "session",
        }
        failures = check_failed(failed, code, since, queue, self.store.clock)
        before, limit = check_cursor("before", before), check_limit(limit)
        return await self.store.listing.sessions(
            failed=failures, before=before, limit=limit, **sought
        )

    async def check(self) -> tuple[CodeFinding, ...]:
        """Compare this code with what is open in the store, and return what does not fit.

        Each finding says how to mend it. It finds agents and tools that are gone, arguments that no
        longer fit, questions that are no longer asked, state and output types that have changed. It
        changes nothing.
        """
        return await check_code(self.store, self.agents, self.workflows)

    async def runs(
        self,
        workflow: Workflow[Any, Any] | str | None = None,
        *,
        tenant: str | None = None,
        status: RunStatus | None = None,
        tags: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[RunSummary]:
        """List runs, newest first; with `tags`, only those that were started with all of them.

        If the code no longer has a `workflow`, give its name. The next page begins after the run
        `before`, the last one of this page.
        """
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        return await list_runs(
            self.store.listing,
            status,
            check_limit(limit),
            tenant=check_sought("tenant", tenant),
            agent=check_sought("workflow", name),
            tags=check_tags(tags),
            before=check_cursor("before", before),
        )

    # Hooks

    def hook(
        self, *events: str, decides: bool = False, tools: Sequence[str] = (), name: str = ""
    ) -> Callable[[HookFunction], HookFunction]:
        """Call a function for events once they are in the log, at least once and in order.

        The function gets the Event; if it raises, it is called again. With `decides` it is asked
        about tool calls before they are recorded, about all or those of `tools`: it gets a
        ProposedCall and returns a Decision. Add hooks before the app is opened; they observe
        sessions that are started afterwards.
        """
        if self.is_open:
            raise InvalidInput("this app is already open: add hooks before you open it")
        check_named(events)

        def register(function: HookFunction) -> HookFunction:
            if decides:
                self._hooks.decide(function, events, tools, name)
            elif tools:
                raise InvalidDefinition(
                    "a hook that observes gets all events of its types: tools= needs decides=True"
                )
            else:
                self._hooks.observe(function, events, name)
            return function

        return register


async def start_described(app: Outlast, new: NewSession) -> Session[Any]:
    """Start a session that is described whole: the server also says for how many it is started."""
    return await app._router.start(new)


async def rendered_prompt(
    app: Outlast, agent: str, session_id: str | None = None, lane: str = MAIN
) -> RenderedPrompt:
    """Return what an agent's model would be told next, in a session or in a new one."""
    known = app.agents[name_of(agent, app.agents)]
    if session_id is not None:
        await app.session(session_id)
    async with AsyncExitStack() as stack:
        deps = await app._runtime.enter_deps(stack)
        return await render_prompt(known, app.store, session_id, lane, deps)


def checked_queue(limits: QueueLimits) -> QueueLimits:
    """Return how many messages may wait, if these are numbers."""
    limits = group_of(QueueLimits, "queue_limits", limits)
    count_of("queue_limits.session", limits.session, least=0)
    count_of("queue_limits.tenant", limits.tenant, least=0)
    count_of("queue_limits.session_bytes", limits.session_bytes, least=0)
    return limits
