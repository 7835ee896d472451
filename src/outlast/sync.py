"""The same app and sessions for scripts, without `await`.

    with outlast.sync.opened(app) as app:
        session = app.start("support", "Refund order 17")
        for event in session.events():
            print(event.type)
        print(session.wait().unwrap())

There is one implementation, async. It runs on an event loop in a thread of its own; the methods
of the classes here wait for it. `make sync` writes the twins at the end from the async classes.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime, timedelta
from typing import Any, Generic, overload

from typing_extensions import TypeVar

from outlast.agents.agent import Agent
from outlast.agents.budget import Budget
from outlast.agents.state.reducer import Reducer
from outlast.agents.state.snapshot import Snapshot
from outlast.app import Outlast
from outlast.client.budget import RemoteBudgets
from outlast.client.bulk import RemoteBulk
from outlast.client.client import Client
from outlast.client.fleet import (
    RemoteChannels,
    RemoteDeployments,
    RemoteProviders,
    RemoteQueues,
    RemoteWorkers,
)
from outlast.client.info import RemoteInfo
from outlast.client.listing import ListPage
from outlast.client.run import RemoteRun
from outlast.client.session import Bookmark, RemoteSession
from outlast.client.usage import RemoteUsage
from outlast.core.event import Event
from outlast.core.instant import Span
from outlast.core.lane import OpenStatus, StartMode, Status, Wait
from outlast.core.message import Message, Said
from outlast.core.name import MAIN
from outlast.core.usage import TreeUsage
from outlast.errors import InvalidInput, StoreUnavailable
from outlast.integration.channel.channel import Channel
from outlast.integration.channel.inbound import ReceivedRequest
from outlast.integration.channel.receiver import ChannelReceiver
from outlast.integration.connection.control import ConnectionControl
from outlast.integration.connection.oauth_callback import SignInOutcome
from outlast.integration.schedule.schedules import ScheduleControl
from outlast.integration.schedule.status import ScheduleStatus
from outlast.log.explain import Explanation
from outlast.log.milestone import Milestone
from outlast.session.budget import BudgetControl, BudgetStatus, Per
from outlast.session.bulk import BulkCancel, BulkControl, BulkRetry, LanePlace
from outlast.session.callback import NO_HEADERS, Callbacks
from outlast.session.code_check import CodeFinding
from outlast.session.deployment import DeploymentControl
from outlast.session.handle import Receipt, Session
from outlast.session.listing import WorkerControl
from outlast.session.mutation import SessionChanges, SliceChanges
from outlast.session.provider import ProviderControl, ProviderOutage
from outlast.session.queue import QueueControl, QueueEntry, QueueInfo
from outlast.session.request import Request, RequestKind
from outlast.session.result import Result
from outlast.session.router import Key, Token
from outlast.session.run import Run, RunInfo, RunResult, RunStatus
from outlast.session.run_history import RunStep
from outlast.session.run_list import RunSummary
from outlast.session.start import Webhook
from outlast.session.state import SliceQuery
from outlast.session.usage import UsageControl
from outlast.store import DeploymentInfo, LaneInfo, SessionInfo, UsageKey, UsageLine, WorkerInfo
from outlast.workflows.workflow import Workflow

__all__ = [
    "SyncBudgetControl",
    "SyncBulkControl",
    "SyncCallbacks",
    "SyncChannelReceiver",
    "SyncClient",
    "SyncConnectionControl",
    "SyncDeploymentControl",
    "SyncOutlast",
    "SyncProviderControl",
    "SyncQueueControl",
    "SyncReceipt",
    "SyncRemoteBudgets",
    "SyncRemoteBulk",
    "SyncRemoteDeployments",
    "SyncRemoteProviders",
    "SyncRemoteQueues",
    "SyncRemoteRun",
    "SyncRemoteSession",
    "SyncRemoteUsage",
    "SyncRemoteWorkers",
    "SyncRun",
    "SyncScheduleControl",
    "SyncSession",
    "SyncSessionChanges",
    "SyncSliceChanges",
    "SyncSliceQuery",
    "SyncUsageControl",
    "SyncWorkerControl",
    "opened",
]

R = TypeVar("R")
Target = TypeVar("Target")


class LoopThread:
    """An event loop that runs in the background until it is stopped."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="outlast loop", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop and wait for its result."""
        if self._loop.is_closed():
            work.close()
            raise StoreUnavailable("this app was closed: use it within its `with`")
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidInput(
                "this call would wait for itself: async tools run on the event loop of"
                " outlast.sync; await the methods of the app itself there, or write the tool as"
                " `def`"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[R]) -> Iterator[R]:
        """Give the items of an async iterator one by one, and close it when left early."""

        async def next_item() -> tuple[R, ...]:
            try:
                return (await anext(items),)
            except StopAsyncIteration:  # a coroutine must not raise it
                return ()

        async def close() -> None:
            if inspect.isasyncgen(items):
                await items.aclose()

        try:
            while item := self.run(next_item()):
                yield item[0]
        finally:
            if not self._loop.is_closed():
                self.run(close())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Bridge(Generic[Target]):
    """An object of the async API, and the thread on whose loop its methods run."""

    def __init__(self, target: Target, thread: LoopThread) -> None:
        self._target = target
        self._thread = thread

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target!r})"


@overload
def opened(app: Outlast) -> AbstractContextManager[SyncOutlast]: ...


@overload
def opened(app: Client) -> AbstractContextManager[SyncClient]: ...


def opened(app: Outlast | Client) -> AbstractContextManager[SyncOutlast | SyncClient]:
    """Open an app, or a client of a server, for sync code, and close it in the end."""
    return _opened(app)


@contextmanager
def _opened(app: Outlast | Client) -> Iterator[SyncOutlast | SyncClient]:
    thread = LoopThread()
    try:
        thread.run(app.open())
        try:
            yield SyncClient(app, thread) if isinstance(app, Client) else SyncOutlast(app, thread)
        finally:
            thread.run(app.close())
    finally:
        thread.stop()


# The twins: written by `make sync`

E = TypeVar("E")
In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)
T = TypeVar("T")


class SyncReceipt(Bridge[Receipt[Out]]):
    """`Receipt` for sync code."""

    @property
    def delivery_id(self) -> str:
        return self._target.delivery_id

    @property
    def duplicate(self) -> bool:
        return self._target.duplicate

    @property
    def lane(self) -> str:
        return self._target.lane

    @property
    def offset(self) -> int:
        return self._target.offset

    @property
    def position(self) -> int:
        return self._target.position

    @property
    def session(self) -> SyncSession[Out]:
        return SyncSession(self._target.session, self._thread)

    @property
    def session_id(self) -> str:
        return self._target.session_id

    def result(self, *, timeout: Span | None = None) -> Result[Out]:
        """Wait for the message's turn to end, or to need a human."""
        return self._thread.run(self._target.result(timeout=timeout))


class SyncSession(Bridge[Session[Out]]):
    """`Session` for sync code."""

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def receipt(self) -> SyncReceipt[Out] | None:
        found = self._target.receipt
        return SyncReceipt(found, self._thread) if found else None

    def info(self) -> SessionInfo:
        """Return the session as it is listed."""
        return self._thread.run(self._target.info())

    def continuation_token(self) -> str:
        """Return the session's newest continuation token."""
        return self._thread.run(self._target.continuation_token())

    def send(
        self,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        lane: str = MAIN,
        principal: str = "",
        deadline: datetime | timedelta | None = None,
    ) -> SyncReceipt[Out]:
        """Put a message into the session's queue; the message is durable when this returns."""
        return SyncReceipt(
            self._thread.run(
                self._target.send(
                    message,
                    dispatch_id=dispatch_id,
                    retry_failed=retry_failed,
                    lane=lane,
                    principal=principal,
                    deadline=deadline,
                )
            ),
            self._thread,
        )

    def answer(
        self,
        request: Request | str,
        option: str | None = None,
        *,
        text: str | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch_id: str | None = None,
        principal: str = "",
    ) -> SyncReceipt[Out]:
        """Answer an open request (the request or its id) with an option, a text, or both."""
        return SyncReceipt(
            self._thread.run(
                self._target.answer(
                    request,
                    option,
                    text=text,
                    args=args,
                    dispatch_id=dispatch_id,
                    principal=principal,
                )
            ),
            self._thread,
        )

    def cancel(
        self, reason: str = "", *, turn: str | None = None, lane: str = MAIN, principal: str = ""
    ) -> None:
        """Stop the open turn of a lane, or its next message if no turn is open."""
        self._thread.run(self._target.cancel(reason, turn=turn, lane=lane, principal=principal))

    def end(self, reason: str = "", *, principal: str = "") -> None:
        """End the session for good, also while its lanes are at work."""
        self._thread.run(self._target.end(reason, principal=principal))

    def retry(self, *, lane: str = MAIN, principal: str = "") -> SyncReceipt[Out]:
        """Try a lane's failed turn again from where it failed; no message is sent again."""
        return SyncReceipt(
            self._thread.run(self._target.retry(lane=lane, principal=principal)), self._thread
        )

    def events(
        self,
        after: int | str = 0,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> Iterator[Event]:
        """Yield all events after a cursor, then new ones as they are committed."""
        return self._thread.iterate(
            self._target.events(after, follow=follow, internals=internals, children=children)
        )

    def wait(self, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until nothing is queued, ready or running; return the result of the last turn."""
        return self._thread.run(self._target.wait(timeout=timeout))

    def result_of(self, delivery_id: str, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until one delivery is settled, or its turn needs a human."""
        return self._thread.run(self._target.result_of(delivery_id, timeout=timeout))

    def history(self, lane: str = MAIN) -> list[Message]:
        """Return a lane's conversation so far, as the model sees it."""
        return self._thread.run(self._target.history(lane))

    def query(self, kind: type[T]) -> SyncSliceQuery[T]:
        """Return the session's values of a type: `await session.query(T).all()`."""
        return SyncSliceQuery(self._target.query(kind), self._thread)

    @overload
    def mutate(self, kind: type[T], *, principal: str = "") -> SyncSliceChanges[T]: ...

    @overload
    def mutate(self, kind: None = None, *, principal: str = "") -> SyncSessionChanges: ...

    def mutate(
        self, kind: type[T] | None = None, *, principal: str = ""
    ) -> SyncSliceChanges[T] | SyncSessionChanges:
        """Return the way to change the session's values of a type, or of all types."""
        found = self._target.mutate(kind, principal=principal)
        if isinstance(found, SliceChanges):
            return SyncSliceChanges(found, self._thread)
        return SyncSessionChanges(found, self._thread)

    def compact(
        self, *, lane: str = MAIN, dispatch_id: str | None = None, principal: str = ""
    ) -> SyncReceipt[Out]:
        """Shorten what the model is sent of a lane from here on. The log stays whole."""
        return SyncReceipt(
            self._thread.run(
                self._target.compact(lane=lane, dispatch_id=dispatch_id, principal=principal)
            ),
            self._thread,
        )

    def rewind(
        self, to: str, *, dispatch_id: str | None = None, principal: str = ""
    ) -> SyncReceipt[Out]:
        """Show the model the session as it was after the turn `to`, such as "t3"."""
        return SyncReceipt(
            self._thread.run(self._target.rewind(to, dispatch_id=dispatch_id, principal=principal)),
            self._thread,
        )

    def snapshot(self, *, at: int | None = None) -> Snapshot:
        """Return all values of the session's state, and its id, tags, parent and children."""
        return self._thread.run(self._target.snapshot(at=at))

    def milestones(self) -> list[Milestone]:
        """Return the milestones that the session has reached, in all lanes, oldest first."""
        return self._thread.run(self._target.milestones())

    def explain(self) -> Explanation:
        """Say for each lane what it does or waits for, and why."""
        return self._thread.run(self._target.explain())

    def usage(self) -> TreeUsage:
        """Return what the session has used so far, and the total with all that it has started."""
        return self._thread.run(self._target.usage())

    def requests(self) -> tuple[Request, ...]:
        """Return the questions that are open."""
        return self._thread.run(self._target.requests())


class SyncSliceQuery(Bridge[SliceQuery[T]]):
    """`SliceQuery` for sync code."""

    def all(self) -> list[T]:
        """Return all values, oldest first."""
        return self._thread.run(self._target.all())

    def latest(self) -> T | None:
        """Return the newest value, or None."""
        return self._thread.run(self._target.latest())

    def where(self, predicate: Callable[[T], bool]) -> list[T]:
        """Return the values for which the predicate is true."""
        return self._thread.run(self._target.where(predicate))


class SyncSliceChanges(Bridge[SliceChanges[T]]):
    """`SliceChanges` for sync code."""

    def seed(self, *values: T, dispatch_id: str | None = None) -> SyncReceipt[Any]:
        """Replace all values by these."""
        return SyncReceipt(
            self._thread.run(self._target.seed(*values, dispatch_id=dispatch_id)), self._thread
        )

    def clear(self, *, dispatch_id: str | None = None) -> SyncReceipt[Any]:
        """Remove all values."""
        return SyncReceipt(
            self._thread.run(self._target.clear(dispatch_id=dispatch_id)), self._thread
        )

    def append(self, value: T, *, dispatch_id: str | None = None) -> SyncReceipt[Any]:
        """Add a value after the others."""
        return SyncReceipt(
            self._thread.run(self._target.append(value, dispatch_id=dispatch_id)), self._thread
        )

    def dispatch(self, event: object, *, dispatch_id: str | None = None) -> SyncReceipt[Any]:
        """Change the slice by its reducer for the event, which the worker has to know."""
        return SyncReceipt(
            self._thread.run(self._target.dispatch(event, dispatch_id=dispatch_id)), self._thread
        )

    def register(self, event: type[E], function: Reducer[T, E]) -> None:
        """Add a reducer for an event in this process, as `outlast.state.reducer` does."""
        self._target.register(event, function)


class SyncSessionChanges(Bridge[SessionChanges]):
    """`SessionChanges` for sync code."""

    def dispatch(self, event: object, *, dispatch_id: str | None = None) -> SyncReceipt[Any]:
        """Change every slice that has a reducer for the event, in the worker."""
        return SyncReceipt(
            self._thread.run(self._target.dispatch(event, dispatch_id=dispatch_id)), self._thread
        )

    def reset(self, *, dispatch_id: str | None = None) -> SyncReceipt[Any]:
        """Remove all values except logs. It is refused while another lane has an open turn."""
        return SyncReceipt(
            self._thread.run(self._target.reset(dispatch_id=dispatch_id)), self._thread
        )

    def rollback(self, snapshot: Snapshot, *, dispatch_id: str | None = None) -> SyncReceipt[Any]:
        """Give all slices the values that a snapshot has, except logs."""
        return SyncReceipt(
            self._thread.run(self._target.rollback(snapshot, dispatch_id=dispatch_id)), self._thread
        )


class SyncCallbacks(Bridge[Callbacks]):
    """`Callbacks` for sync code."""

    def check(self, token: str) -> None:
        """Raise UnknownCallback unless the address was given out, used or not."""
        self._thread.run(self._target.check(token))

    def receive(
        self,
        token: str,
        body: bytes,
        content_type: str = "application/json",
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> SyncReceipt[Any] | None:
        """Hand over what was posted to the address of a waiting tool."""
        found = self._thread.run(self._target.receive(token, body, content_type, headers))
        return SyncReceipt(found, self._thread) if found else None


class SyncChannelReceiver(Bridge[ChannelReceiver]):
    """`ChannelReceiver` for sync code."""

    def check(self, name: str) -> Channel:
        """Return a channel, or raise UnknownChannel: before what was posted to it is read."""
        return self._target.check(name)

    def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> ReceivedRequest:
        """Bring a post to its session, and return the receipt or the channel's own answer."""
        return self._thread.run(self._target.receive(name, headers, body))

    def anchor(
        self,
        session_id: str,
        channel: str,
        thread: str,
        *,
        dispatch_id: str | None = None,
        principal: str = "",
    ) -> SyncReceipt[Any]:
        """Have a session told in a thread of a channel from now on, wherever it began."""
        return SyncReceipt(
            self._thread.run(
                self._target.anchor(
                    session_id, channel, thread, dispatch_id=dispatch_id, principal=principal
                )
            ),
            self._thread,
        )


class SyncConnectionControl(Bridge[ConnectionControl]):
    """`ConnectionControl` for sync code."""

    def complete(
        self,
        connection: str,
        *,
        state: str,
        code: str = "",
        error: str = "",
        iss: str = "",
        tenant: str | None = None,
        principal: str | None = None,
    ) -> SignInOutcome:
        """Complete a sign-in when its user comes back from the provider, and say how it ended."""
        return self._thread.run(
            self._target.complete(
                connection,
                state=state,
                code=code,
                error=error,
                iss=iss,
                tenant=tenant,
                principal=principal,
            )
        )

    def sign_out(
        self, connection: str, *, tenant: str = "default", principal: str = "", revoke: bool = True
    ) -> bool:
        """Delete the token of a principal, or of the app; return whether there was one."""
        return self._thread.run(
            self._target.sign_out(connection, tenant=tenant, principal=principal, revoke=revoke)
        )


class SyncScheduleControl(Bridge[ScheduleControl]):
    """`ScheduleControl` for sync code."""

    def list(self) -> tuple[ScheduleStatus, ...]:
        """List the schedules by name, with when they are due."""
        return self._thread.run(self._target.list())

    def trigger(self, schedule: str, *, dispatch_id: str | None = None) -> SyncSession[Any]:
        """Start a session of a schedule now, besides its instants, even if it is paused."""
        return SyncSession(
            self._thread.run(self._target.trigger(schedule, dispatch_id=dispatch_id)), self._thread
        )

    def pause(self, schedule: str) -> None:
        """Stop a schedule until it is resumed, in all workers."""
        self._thread.run(self._target.pause(schedule))

    def resume(self, schedule: str) -> None:
        """Go on with a schedule's next instant; instants that passed meanwhile do not fire."""
        self._thread.run(self._target.resume(schedule))


class SyncBulkControl(Bridge[BulkControl]):
    """`BulkControl` for sync code."""

    def retry(
        self,
        *,
        code: str | None = None,
        agent: str | None = None,
        queue: str | None = None,
        since: datetime | timedelta | None = None,
        tenant: str | None = None,
        principal: str = "",
        dry_run: bool = False,
        limit: int | None = None,
        after: LanePlace | None = None,
    ) -> BulkRetry:
        """Try failed turns again from where they failed: all, or those chosen by the parameters."""
        return self._thread.run(
            self._target.retry(
                code=code,
                agent=agent,
                queue=queue,
                since=since,
                tenant=tenant,
                principal=principal,
                dry_run=dry_run,
                limit=limit,
                after=after,
            )
        )

    def cancel(
        self,
        *,
        agent: str | None = None,
        status: OpenStatus | None = None,
        waiting: Wait | None = None,
        since: datetime | timedelta | None = None,
        tenant: str | None = None,
        reason: str = "",
        principal: str = "",
        dry_run: bool = False,
        limit: int | None = None,
        after: LanePlace | None = None,
    ) -> BulkCancel:
        """Stop the open turn of many lanes, or the next message of lanes without an open turn."""
        return self._thread.run(
            self._target.cancel(
                agent=agent,
                status=status,
                waiting=waiting,
                since=since,
                tenant=tenant,
                reason=reason,
                principal=principal,
                dry_run=dry_run,
                limit=limit,
                after=after,
            )
        )


class SyncWorkerControl(Bridge[WorkerControl]):
    """`WorkerControl` for sync code."""

    def list(self) -> Sequence[WorkerInfo]:
        """List the living workers of this store, oldest first."""
        return self._thread.run(self._target.list())

    def lanes(
        self,
        *,
        session_id: str | None = None,
        tenant: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        worker: str | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 50,
    ) -> Sequence[LaneInfo]:
        """List lanes, those of the newest session first; `after` is a session and a lane of it."""
        return self._thread.run(
            self._target.lanes(
                session_id=session_id,
                tenant=tenant,
                agent=agent,
                status=status,
                worker=worker,
                after=after,
                limit=limit,
            )
        )

    def drain(self, worker: str) -> None:
        """Ask a worker to hand back its lanes and stop."""
        self._thread.run(self._target.drain(worker))


class SyncProviderControl(Bridge[ProviderControl]):
    """`ProviderControl` for sync code."""

    def list(self, *, agent: str | None = None) -> Sequence[ProviderOutage]:
        """List the providers that do not answer, those that are away for longest first."""
        return self._thread.run(self._target.list(agent=agent))

    def try_now(self, *, agent: str | None = None) -> int:
        """Have the first in each line ask its provider now; return the number of lines."""
        return self._thread.run(self._target.try_now(agent=agent))


class SyncQueueControl(Bridge[QueueControl]):
    """`QueueControl` for sync code."""

    def list(self) -> Sequence[QueueInfo]:
        """List all queues by name."""
        return self._thread.run(self._target.list())

    def get(self, name: str) -> QueueInfo:
        """Return one queue."""
        return self._thread.run(self._target.get(name))

    def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        per_worker: int | None = None,
        per_key: int | None = None,
        rate: int | None = None,
        per: Span | None = None,
        priority: int | None = None,
        delay: Span | None = None,
        singleton: bool | None = None,
    ) -> QueueInfo:
        """Change settings of a queue, or make it; what is left out stays as it is."""
        return self._thread.run(
            self._target.set(
                name,
                concurrency=concurrency,
                per_worker=per_worker,
                per_key=per_key,
                rate=rate,
                per=per,
                priority=priority,
                delay=delay,
                singleton=singleton,
            )
        )

    def remove(self, name: str) -> None:
        """Remove the settings of a queue: its turns are no longer limited."""
        self._thread.run(self._target.remove(name))


class SyncDeploymentControl(Bridge[DeploymentControl]):
    """`DeploymentControl` for sync code."""

    def list(self) -> Sequence[DeploymentInfo]:
        """List the deployments that workers have named, the current one first."""
        return self._thread.run(self._target.list())

    def promote(self, name: str) -> None:
        """Make a deployment the current one of its agents: new turns begin there."""
        self._thread.run(self._target.promote(name))

    def retire(self, name: str, *, to: str) -> int:
        """Move all that is pinned to a deployment to another; return how many lanes that were."""
        return self._thread.run(self._target.retire(name, to=to))


class SyncUsageControl(Bridge[UsageControl]):
    """`UsageControl` for sync code."""

    def by(
        self,
        key: UsageKey,
        *,
        tenant: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Sequence[UsageLine]:
        """Add up usage by session, agent, model, tenant, principal or day, in the key's order."""
        return self._thread.run(
            self._target.by(
                key,
                tenant=tenant,
                session_id=session_id,
                agent=agent,
                model=model,
                principal=principal,
                since=since,
                until=until,
                after=after,
                limit=limit,
            )
        )

    def total(
        self,
        *,
        tenant: str | None = None,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
    ) -> UsageLine:
        """Add up all usage, or what is asked for."""
        return self._thread.run(
            self._target.total(
                tenant=tenant,
                session_id=session_id,
                agent=agent,
                model=model,
                principal=principal,
                since=since,
                until=until,
            )
        )


class SyncRun(Bridge[Run[Out]]):
    """`Run` for sync code."""

    @property
    def duplicate(self) -> bool:
        return self._target.duplicate

    @property
    def id(self) -> str:
        return self._target.id

    def info(self) -> SessionInfo:
        """Return the run as sessions are listed."""
        return self._thread.run(self._target.info())

    def status(self) -> RunStatus:
        """Return the run's status."""
        return self._thread.run(self._target.status())

    def wait(self, *, timeout: Span | None = None) -> RunResult[Out]:
        """Wait until the run has ended or needs a human, and return its result."""
        return self._thread.run(self._target.wait(timeout=timeout))

    def events(
        self,
        after: int | str = 0,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> Iterator[Event]:
        """Yield all events of the run after a cursor, as `Session.events` does."""
        return self._thread.iterate(
            self._target.events(after, follow=follow, internals=internals, children=children)
        )

    def meta(self) -> RunInfo:
        """Return the record of the run."""
        return self._thread.run(self._target.meta())

    def steps(self, *, after: str = "", limit: int | None = None) -> Sequence[RunStep]:
        """Return the steps of the run, in the order in which they began."""
        return self._thread.run(self._target.steps(after=after, limit=limit))

    def explain(self) -> Explanation:
        """Say what the run does or waits for, and why."""
        return self._thread.run(self._target.explain())

    def usage(self) -> TreeUsage:
        """Return what the agents of the run have used so far."""
        return self._thread.run(self._target.usage())

    def requests(self) -> Sequence[Request]:
        """Return the questions that are open in the run and below it."""
        return self._thread.run(self._target.requests())

    def answer(
        self,
        request: Request | str,
        option: str | None = None,
        *,
        text: str | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch_id: str | None = None,
        principal: str = "",
    ) -> None:
        """Answer an open request of the run (itself or its id)."""
        self._thread.run(
            self._target.answer(
                request, option, text=text, args=args, dispatch_id=dispatch_id, principal=principal
            )
        )

    def retry(self, *, dispatch_id: str | None = None, principal: str = "") -> SyncRun[Out]:
        """Start a new run that tries this one again, with the same input, and return it."""
        return SyncRun(
            self._thread.run(self._target.retry(dispatch_id=dispatch_id, principal=principal)),
            self._thread,
        )

    def send_event(
        self, name: str, payload: Any = None, *, dispatch_id: str | None = None, principal: str = ""
    ) -> None:
        """Send an event to the run; it is kept until the body waits for one of that name."""
        self._thread.run(
            self._target.send_event(name, payload, dispatch_id=dispatch_id, principal=principal)
        )

    def cancel(self, reason: str = "", *, principal: str = "") -> None:
        """End the run: stop it, and undo what it has done, as its body registered."""
        self._thread.run(self._target.cancel(reason, principal=principal))


class SyncBudgetControl(Bridge[BudgetControl]):
    """`BudgetControl` for sync code."""

    def set(
        self,
        budget: Budget | None,
        *,
        tenant: str = "default",
        principal: str = "",
        session_id: str = "",
        per: Per = "total",
        expected: int | None = None,
    ) -> BudgetStatus | None:
        """Set what a tenant, a principal of it or a session may use; None removes the budget."""
        return self._thread.run(
            self._target.set(
                budget,
                tenant=tenant,
                principal=principal,
                session_id=session_id,
                per=per,
                expected=expected,
            )
        )

    def get(
        self,
        *,
        tenant: str = "default",
        principal: str = "",
        session_id: str = "",
        per: Per = "total",
    ) -> BudgetStatus | None:
        """Return a budget as it stands; None if none is set."""
        return self._thread.run(
            self._target.get(tenant=tenant, principal=principal, session_id=session_id, per=per)
        )

    def list(
        self, *, tenant: str | None = None, after: BudgetStatus | None = None, limit: int = 50
    ) -> Sequence[BudgetStatus]:
        """List the budgets that were set, by tenant; `after` is the one to go on behind."""
        return self._thread.run(self._target.list(tenant=tenant, after=after, limit=limit))


class SyncOutlast(Bridge[Outlast]):
    """`Outlast` for sync code."""

    @property
    def budgets(self) -> SyncBudgetControl:
        return SyncBudgetControl(self._target.budgets, self._thread)

    @property
    def bulk(self) -> SyncBulkControl:
        return SyncBulkControl(self._target.bulk, self._thread)

    @property
    def callbacks(self) -> SyncCallbacks:
        return SyncCallbacks(self._target.callbacks, self._thread)

    @property
    def channels(self) -> SyncChannelReceiver:
        return SyncChannelReceiver(self._target.channels, self._thread)

    @property
    def connections(self) -> SyncConnectionControl:
        return SyncConnectionControl(self._target.connections, self._thread)

    @property
    def deployments(self) -> SyncDeploymentControl:
        return SyncDeploymentControl(self._target.deployments, self._thread)

    @property
    def providers(self) -> SyncProviderControl:
        return SyncProviderControl(self._target.providers, self._thread)

    @property
    def queues(self) -> SyncQueueControl:
        return SyncQueueControl(self._target.queues, self._thread)

    @property
    def schedules(self) -> SyncScheduleControl:
        return SyncScheduleControl(self._target.schedules, self._thread)

    @property
    def usage(self) -> SyncUsageControl:
        return SyncUsageControl(self._target.usage, self._thread)

    @property
    def workers(self) -> SyncWorkerControl:
        return SyncWorkerControl(self._target.workers, self._thread)

    @property
    def is_open(self) -> bool:
        """Whether the app was opened, and not closed since."""
        return self._target.is_open

    def start(
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
    ) -> SyncSession[Out]:
        """Start a session with a message; the message is durable when this returns."""
        return SyncSession(
            self._thread.run(
                self._target.start(
                    agent,
                    message,
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
            ),
            self._thread,
        )

    def run(
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
    ) -> SyncRun[Out]:
        """Start a run of a workflow; the run is durable when this returns."""
        return SyncRun(
            self._thread.run(
                self._target.run(
                    workflow,
                    input,
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
            ),
            self._thread,
        )

    def get_run(self, run_id: str) -> SyncRun[Any]:
        """Return a handle on a run; UnknownRun if there is none."""
        return SyncRun(self._thread.run(self._target.get_run(run_id)), self._thread)

    def session(self, session_id: str) -> SyncSession[Any]:
        """Return a handle on a session; UnknownSession if there is none."""
        return SyncSession(self._thread.run(self._target.session(session_id)), self._thread)

    def send(
        self,
        to: Token | Key,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        tenant: str = "default",
        principal: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> SyncReceipt[Any]:
        """Send a message to an address; start a session there if there is none."""
        return SyncReceipt(
            self._thread.run(
                self._target.send(
                    to,
                    message,
                    dispatch_id=dispatch_id,
                    retry_failed=retry_failed,
                    tenant=tenant,
                    principal=principal,
                    tags=tags,
                )
            ),
            self._thread,
        )

    def find(self, key: Key, *, tenant: str = "default") -> str | None:
        """Return the id of the session that has a key, over or not; None if there is none."""
        return self._thread.run(self._target.find(key, tenant=tenant))

    def erase(self, session_id: str, *, cancel_remote: bool = True) -> None:
        """End a session and erase it with its children, for good."""
        self._thread.run(self._target.erase(session_id, cancel_remote=cancel_remote))

    def requests(
        self,
        *,
        tenant: str | None = None,
        agent: str | None = None,
        kinds: Sequence[RequestKind] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[Request, ...]:
        """List open questions to humans across sessions, oldest first."""
        return self._thread.run(
            self._target.requests(tenant=tenant, agent=agent, kinds=kinds, after=after, limit=limit)
        )

    def sessions(
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
        """List sessions, newest first; runs of workflows are listed by `runs`."""
        return self._thread.run(
            self._target.sessions(
                tenant=tenant,
                agent=agent,
                status=status,
                tags=tags,
                failed=failed,
                code=code,
                queue=queue,
                since=since,
                before=before,
                limit=limit,
            )
        )

    def check(self) -> tuple[CodeFinding, ...]:
        """Compare this code with what is open in the store, and return what does not fit."""
        return self._thread.run(self._target.check())

    def runs(
        self,
        workflow: Workflow[Any, Any] | str | None = None,
        *,
        tenant: str | None = None,
        status: RunStatus | None = None,
        tags: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Sequence[RunSummary]:
        """List runs, newest first; with `tags`, only those that were started with all of them."""
        return self._thread.run(
            self._target.runs(
                workflow, tenant=tenant, status=status, tags=tags, before=before, limit=limit
            )
        )


class SyncRemoteSession(Bridge[RemoteSession[Out]]):
    """`RemoteSession` for sync code."""

    @property
    def id(self) -> str:
        return self._target.id

    @property
    def bookmark(self) -> Bookmark:
        """The place after the last event that was read: keep it as JSON, for `Client.resume`."""
        return self._target.bookmark

    def info(self) -> RemoteInfo:
        """Return the session as it is listed, what it waits for and what it has cost."""
        return self._thread.run(self._target.info())

    def usage(self) -> TreeUsage:
        """Return what the session has used so far, and the total with all that it has started."""
        return self._thread.run(self._target.usage())

    def continuation_token(self) -> str:
        """Return the session's newest continuation token; None without the scope `send`."""
        return self._thread.run(self._target.continuation_token())

    def send(
        self,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        lane: str = MAIN,
        deadline: datetime | timedelta | None = None,
    ) -> SyncReceipt[Out]:
        """Put a message into the session's queue; the message is durable when this returns."""
        return SyncReceipt(
            self._thread.run(
                self._target.send(
                    message,
                    dispatch_id=dispatch_id,
                    retry_failed=retry_failed,
                    lane=lane,
                    deadline=deadline,
                )
            ),
            self._thread,
        )

    def answer(
        self,
        request: Request | str,
        option: str | None = None,
        *,
        text: str | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch_id: str | None = None,
    ) -> SyncReceipt[Out]:
        """Answer an open request (the request or its id) with an option, a text, or both."""
        return SyncReceipt(
            self._thread.run(
                self._target.answer(request, option, text=text, args=args, dispatch_id=dispatch_id)
            ),
            self._thread,
        )

    def cancel(self, reason: str = "", *, turn: str | None = None, lane: str = MAIN) -> None:
        """Stop the open turn of a lane. The session and its queue stay."""
        self._thread.run(self._target.cancel(reason, turn=turn, lane=lane))

    def end(self, reason: str = "") -> None:
        """End the session for good."""
        self._thread.run(self._target.end(reason))

    def retry(self, *, lane: str = MAIN) -> SyncReceipt[Out]:
        """Try a lane's failed turn again from where it failed; no message is sent again."""
        return SyncReceipt(self._thread.run(self._target.retry(lane=lane)), self._thread)

    def compact(self, *, lane: str = MAIN, dispatch_id: str | None = None) -> SyncReceipt[Out]:
        """Shorten what the model is sent of a lane from here on. The log stays whole."""
        return SyncReceipt(
            self._thread.run(self._target.compact(lane=lane, dispatch_id=dispatch_id)), self._thread
        )

    def rewind(self, to: str, *, dispatch_id: str | None = None) -> SyncReceipt[Out]:
        """Show the model the session as it was after the turn `to`. The log stays whole."""
        return SyncReceipt(
            self._thread.run(self._target.rewind(to, dispatch_id=dispatch_id)), self._thread
        )

    def query(self, kind: type[T]) -> SyncSliceQuery[T]:
        """Return the session's values of a type, read again at each call."""
        return SyncSliceQuery(self._target.query(kind), self._thread)

    @overload
    def mutate(self, kind: type[T]) -> SyncSliceChanges[T]: ...

    @overload
    def mutate(self, kind: None = None) -> SyncSessionChanges: ...

    def mutate(self, kind: type[T] | None = None) -> SyncSliceChanges[T] | SyncSessionChanges:
        """Return the way to change the session's values of a type, or of all types."""
        found = self._target.mutate(kind)
        if isinstance(found, SliceChanges):
            return SyncSliceChanges(found, self._thread)
        return SyncSessionChanges(found, self._thread)

    def snapshot(self) -> Snapshot:
        """Return all values of the session's state, and its id, tags, parent and children."""
        return self._thread.run(self._target.snapshot())

    def events(
        self,
        after: int | str | None = None,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> Iterator[Event]:
        """Yield all events after a cursor, then new ones as they are committed."""
        return self._thread.iterate(
            self._target.events(after, follow=follow, internals=internals, children=children)
        )

    def wait(self, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until nothing is queued, ready or running; return the result of the last turn."""
        return self._thread.run(self._target.wait(timeout=timeout))

    def result_of(self, delivery_id: str, *, timeout: Span | None = None) -> Result[Out]:
        """Wait until one delivery is settled, or its turn needs a human."""
        return self._thread.run(self._target.result_of(delivery_id, timeout=timeout))

    def history(self, lane: str = MAIN) -> list[Message]:
        """Return the conversation so far, as the model sees it."""
        return self._thread.run(self._target.history(lane))

    def milestones(self) -> list[Milestone]:
        """Return the milestones that the session has reached, in all lanes, oldest first."""
        return self._thread.run(self._target.milestones())

    def requests(self) -> tuple[Request, ...]:
        """Return the questions that are open."""
        return self._thread.run(self._target.requests())


class SyncRemoteRun(Bridge[RemoteRun[Out]]):
    """`RemoteRun` for sync code."""

    @property
    def duplicate(self) -> bool:
        return self._target.duplicate

    @property
    def id(self) -> str:
        return self._target.id

    def info(self) -> RemoteInfo:
        """Return the run as sessions are listed."""
        return self._thread.run(self._target.info())

    def status(self) -> RunStatus:
        """Return the run's status."""
        return self._thread.run(self._target.status())

    def wait(self, *, timeout: Span | None = None) -> RunResult[Out]:
        """Wait until the run has ended or needs a human, and return its result."""
        return self._thread.run(self._target.wait(timeout=timeout))

    def events(
        self,
        after: int | str = 0,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> Iterator[Event]:
        """Yield all events of the run after a cursor, as `RemoteSession.events` does."""
        return self._thread.iterate(
            self._target.events(after, follow=follow, internals=internals, children=children)
        )

    def meta(self) -> RunInfo:
        """Return the record of the run; the server does not say whose it is."""
        return self._thread.run(self._target.meta())

    def steps(self, *, after: str = "", limit: int | None = None) -> Sequence[RunStep]:
        """Return the steps of the run, in the order in which they began."""
        return self._thread.run(self._target.steps(after=after, limit=limit))

    def usage(self) -> TreeUsage:
        """Return what the agents of the run have used so far."""
        return self._thread.run(self._target.usage())

    def requests(self) -> Sequence[Request]:
        """Return the questions that are open in the run and below it."""
        return self._thread.run(self._target.requests())

    def answer(
        self,
        request_id: str,
        option: str | None = None,
        *,
        text: str | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch_id: str | None = None,
    ) -> None:
        """Answer an open request of the run."""
        self._thread.run(
            self._target.answer(request_id, option, text=text, args=args, dispatch_id=dispatch_id)
        )

    def retry(self, *, dispatch_id: str | None = None) -> SyncRemoteRun[Out]:
        """Start a new run that tries this one again, with what has succeeded, and return it."""
        return SyncRemoteRun(
            self._thread.run(self._target.retry(dispatch_id=dispatch_id)), self._thread
        )

    def send_event(self, name: str, payload: Any = None, *, dispatch_id: str | None = None) -> None:
        """Send an event to the run; it is kept until the body waits for one of that name."""
        self._thread.run(self._target.send_event(name, payload, dispatch_id=dispatch_id))

    def cancel(self, reason: str = "") -> None:
        """End the run: stop it, and undo what it has done, as its body registered."""
        self._thread.run(self._target.cancel(reason))


class SyncRemoteWorkers(Bridge[RemoteWorkers]):
    """`RemoteWorkers` for sync code."""

    def lanes(
        self,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> ListPage[LaneInfo]:
        """List lanes, those of the newest session first."""
        return self._thread.run(
            self._target.lanes(
                session_id=session_id, agent=agent, status=status, after=after, limit=limit
            )
        )

    def list(self) -> Sequence[WorkerInfo]:
        """List the living workers, oldest first."""
        return self._thread.run(self._target.list())


class SyncRemoteQueues(Bridge[RemoteQueues]):
    """`RemoteQueues` for sync code."""

    def list(self) -> Sequence[QueueInfo]:
        """List all queues by name."""
        return self._thread.run(self._target.list())

    def get(self, name: str) -> QueueInfo:
        """Return one queue."""
        return self._thread.run(self._target.get(name))

    def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        per_worker: int | None = None,
        per_key: int | None = None,
        rate: int | None = None,
        per: Span | None = None,
        priority: int | None = None,
        delay: Span | None = None,
        singleton: bool | None = None,
    ) -> QueueInfo:
        """Change settings of a queue, or make it; what is left out stays as it is."""
        return self._thread.run(
            self._target.set(
                name,
                concurrency=concurrency,
                per_worker=per_worker,
                per_key=per_key,
                rate=rate,
                per=per,
                priority=priority,
                delay=delay,
                singleton=singleton,
            )
        )

    def remove(self, name: str) -> None:
        """Forget the settings of a queue: nothing bounds its turns any more."""
        self._thread.run(self._target.remove(name))


class SyncRemoteProviders(Bridge[RemoteProviders]):
    """`RemoteProviders` for sync code."""

    def list(self, *, agent: str | None = None) -> Sequence[ProviderOutage]:
        """List the providers that do not answer, those that are away for longest first."""
        return self._thread.run(self._target.list(agent=agent))

    def try_now(self, *, agent: str | None = None) -> int:
        """Have the first in each line ask its provider now; return how many lines there are."""
        return self._thread.run(self._target.try_now(agent=agent))


class SyncRemoteDeployments(Bridge[RemoteDeployments]):
    """`RemoteDeployments` for sync code."""

    def list(self) -> Sequence[DeploymentInfo]:
        """List the deployments that workers have named, the current one first."""
        return self._thread.run(self._target.list())

    def promote(self, name: str) -> None:
        """Make a deployment the current one of its agents: what is pinned to none goes on there."""
        self._thread.run(self._target.promote(name))

    def retire(self, name: str, *, to: str) -> int:
        """Move all that is pinned to a deployment to another one; return how many lanes."""
        return self._thread.run(self._target.retire(name, to=to))


class SyncRemoteUsage(Bridge[RemoteUsage]):
    """`RemoteUsage` for sync code."""

    def by(
        self,
        key: UsageKey,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> ListPage[UsageLine]:
        """Add up usage by session, agent, model, tenant, principal or day, in the key's order."""
        return self._thread.run(
            self._target.by(
                key,
                session_id=session_id,
                agent=agent,
                model=model,
                principal=principal,
                since=since,
                until=until,
                after=after,
                limit=limit,
            )
        )

    def total(
        self,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        principal: str | None = None,
        since: date | None = None,
        until: date | None = None,
    ) -> UsageLine:
        """Add up all usage, or what is asked for."""
        return self._thread.run(
            self._target.total(
                session_id=session_id,
                agent=agent,
                model=model,
                principal=principal,
                since=since,
                until=until,
            )
        )


class SyncRemoteBudgets(Bridge[RemoteBudgets]):
    """`RemoteBudgets` for sync code."""

    def set(
        self,
        budget: Budget | None,
        *,
        principal: str = "",
        session_id: str = "",
        per: Per = "total",
        expected: int | None = None,
    ) -> BudgetStatus | None:
        """Set what the tenant, a principal of it or a session may use; None takes it away."""
        return self._thread.run(
            self._target.set(
                budget, principal=principal, session_id=session_id, per=per, expected=expected
            )
        )

    def list(self, *, after: str | None = None, limit: int = 50) -> ListPage[BudgetStatus]:
        """List the budgets that were set; a page's `cursor` says where to go on with `after`."""
        return self._thread.run(self._target.list(after=after, limit=limit))


class SyncRemoteBulk(Bridge[RemoteBulk]):
    """`RemoteBulk` for sync code."""

    def retry(
        self,
        *,
        code: str | None = None,
        agent: str | None = None,
        queue: str | None = None,
        since: datetime | timedelta | None = None,
        dry_run: bool = False,
    ) -> BulkRetry:
        """Try failed turns again from where they failed: all, or those that failed so."""
        return self._thread.run(
            self._target.retry(code=code, agent=agent, queue=queue, since=since, dry_run=dry_run)
        )

    def cancel(
        self,
        *,
        agent: str | None = None,
        status: OpenStatus | None = None,
        waiting: Wait | None = None,
        since: datetime | timedelta | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> BulkCancel:
        """Stop what is open in many lanes: the open turn of each, or else its next message."""
        return self._thread.run(
            self._target.cancel(
                agent=agent,
                status=status,
                waiting=waiting,
                since=since,
                reason=reason,
                dry_run=dry_run,
            )
        )


class SyncClient(Bridge[Client]):
    """`Client` for sync code."""

    @property
    def bulk(self) -> SyncRemoteBulk:
        """Retries and cancels of many turns at once."""
        return SyncRemoteBulk(self._target.bulk, self._thread)

    @property
    def workers(self) -> SyncRemoteWorkers:
        """The workers of the server, and the lanes that they carry."""
        return SyncRemoteWorkers(self._target.workers, self._thread)

    @property
    def channels(self) -> RemoteChannels:
        """The channels of the server's app."""
        return self._target.channels

    @property
    def queues(self) -> SyncRemoteQueues:
        """The queues of the server."""
        return SyncRemoteQueues(self._target.queues, self._thread)

    @property
    def deployments(self) -> SyncRemoteDeployments:
        """The named versions of the code that the workers of the server run."""
        return SyncRemoteDeployments(self._target.deployments, self._thread)

    @property
    def providers(self) -> SyncRemoteProviders:
        """The providers that do not answer the agents of the server."""
        return SyncRemoteProviders(self._target.providers, self._thread)

    @property
    def usage(self) -> SyncRemoteUsage:
        """What models were used for, and what that has cost."""
        return SyncRemoteUsage(self._target.usage, self._thread)

    @property
    def budgets(self) -> SyncRemoteBudgets:
        """What the tenant, its principals and its sessions may use."""
        return SyncRemoteBudgets(self._target.budgets, self._thread)

    def start(
        self,
        agent: Agent[Any, Out] | str,
        message: Said,
        *,
        mode: StartMode = "conversation",
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        continuation_token: str | None = None,
        lane: str = MAIN,
        capabilities: Mapping[str, bool] | None = None,
        deadline: datetime | timedelta | None = None,
        budget: Budget | None = None,
        webhook: Webhook | None = None,
        tags: Mapping[str, str] | None = None,
        queue: str | QueueEntry | None = None,
        output_type: type[Out] | None = None,
    ) -> SyncRemoteSession[Out]:
        """Start a session with a message; the message is durable when this returns."""
        return SyncRemoteSession(
            self._thread.run(
                self._target.start(
                    agent,
                    message,
                    mode=mode,
                    dispatch_id=dispatch_id,
                    retry_failed=retry_failed,
                    continuation_token=continuation_token,
                    lane=lane,
                    capabilities=capabilities,
                    deadline=deadline,
                    budget=budget,
                    webhook=webhook,
                    tags=tags,
                    queue=queue,
                    output_type=output_type,
                )
            ),
            self._thread,
        )

    def session(
        self, session_id: str, *, output_type: type[Any] | None = None
    ) -> SyncRemoteSession[Any]:
        """Return a handle on a session; awaiting it makes sure that the session exists."""
        return SyncRemoteSession(
            self._target.session(session_id, output_type=output_type), self._thread
        )

    def resume(
        self, bookmark: Bookmark, *, output_type: type[Any] | None = None
    ) -> SyncRemoteSession[Any]:
        """Return a handle on a session whose events continue after a bookmark."""
        return SyncRemoteSession(
            self._target.resume(bookmark, output_type=output_type), self._thread
        )

    def send(
        self,
        to: Token | Key,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        tags: Mapping[str, str] | None = None,
        output_type: type[Any] | None = None,
    ) -> SyncReceipt[Any]:
        """Send a message to an address; start a session there if there is none."""
        return SyncReceipt(
            self._thread.run(
                self._target.send(
                    to,
                    message,
                    dispatch_id=dispatch_id,
                    retry_failed=retry_failed,
                    tags=tags,
                    output_type=output_type,
                )
            ),
            self._thread,
        )

    def run(
        self,
        workflow: Workflow[In, Out] | str,
        input: In | None = None,
        *,
        dispatch_id: str | None = None,
        delay: Span = 0.0,
        deadline: datetime | timedelta | None = None,
        tags: Mapping[str, str] | None = None,
        capabilities: Mapping[str, bool] | None = None,
        webhook: Webhook | None = None,
        queue: str | QueueEntry | None = None,
        output_type: type[Out] | None = None,
    ) -> SyncRemoteRun[Out]:
        """Start a run of a workflow; the run is durable when this returns."""
        return SyncRemoteRun(
            self._thread.run(
                self._target.run(
                    workflow,
                    input,
                    dispatch_id=dispatch_id,
                    delay=delay,
                    deadline=deadline,
                    tags=tags,
                    capabilities=capabilities,
                    webhook=webhook,
                    queue=queue,
                    output_type=output_type,
                )
            ),
            self._thread,
        )

    def get_run(self, run_id: str, *, output_type: type[Any] | None = None) -> SyncRemoteRun[Any]:
        """Return a handle on a run; awaiting it makes sure that the run exists."""
        return SyncRemoteRun(self._target.get_run(run_id, output_type=output_type), self._thread)

    def runs(
        self,
        workflow: Workflow[Any, Any] | str | None = None,
        *,
        status: RunStatus | None = None,
        tags: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> ListPage[RunSummary]:
        """List runs, newest first; `before` is the `cursor` of the page before."""
        return self._thread.run(
            self._target.runs(workflow, status=status, tags=tags, before=before, limit=limit)
        )

    def erase(self, session_id: str, *, cancel_remote: bool = True) -> None:
        """End a session and erase it with its children, at once and for good."""
        self._thread.run(self._target.erase(session_id, cancel_remote=cancel_remote))

    def sessions(
        self,
        *,
        agent: str | None = None,
        status: Status | None = None,
        tags: Mapping[str, str] | None = None,
        failed: bool = False,
        code: str | None = None,
        queue: str | None = None,
        since: datetime | timedelta | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> ListPage[SessionInfo]:
        """List sessions, newest first; `before` is the `cursor` of the page before."""
        return self._thread.run(
            self._target.sessions(
                agent=agent,
                status=status,
                tags=tags,
                failed=failed,
                code=code,
                queue=queue,
                since=since,
                before=before,
                limit=limit,
            )
        )

    def requests(
        self,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        kinds: Sequence[RequestKind] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> ListPage[Request]:
        """List open questions to humans across sessions, oldest first."""
        return self._thread.run(
            self._target.requests(
                session_id=session_id, agent=agent, kinds=kinds, after=after, limit=limit
            )
        )
