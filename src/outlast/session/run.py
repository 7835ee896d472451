"""The handle on one run of a workflow: a session of its own kind, in the words of runs.

Only reads and admits, as a session's handle does; the body is run by workers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import TypeVar

from outlast.agents.runtime.json_value import from_json, to_json
from outlast.core import record as r
from outlast.core.event import Event
from outlast.core.instant import Span, date_of
from outlast.core.lane import Status
from outlast.core.message import MAX_MESSAGE
from outlast.core.name import MAIN, check_id, check_who
from outlast.core.record import Failure
from outlast.core.usage import TreeUsage
from outlast.errors import DeadlineExceeded, MessageTooLarge, RunError, StillWaiting
from outlast.log.explain import Explanation
from outlast.log.reader import read_outcome
from outlast.session.handle import Receipt, Session, info_error
from outlast.session.request import Request
from outlast.session.result import Result, ResultStatus
from outlast.session.run_history import RunStep, most_steps, read_steps, retry_of
from outlast.session.start import NewSession
from outlast.session.waiting import WaitingFor, in_words
from outlast.store import SessionInfo

Out = TypeVar("Out", default=Any)

RunStatus = Literal["queued", "active", "waiting", "completed", "errored", "cancelled"]
"""How a run stands. A `waiting` one waits for a time, an event, a child or a human."""

OF_SESSION: Mapping[Status, RunStatus] = {
    "queued": "queued",
    "idle": "queued",
    "running": "active",
    "waiting": "waiting",
    "sleeping": "waiting",
    "completed": "completed",
    "failed": "errored",
    "ended": "cancelled",
}

OF_RESULT: Mapping[ResultStatus, RunStatus] = {
    "completed": "completed",
    "failed": "errored",
    "waiting": "waiting",
}
ENDED: tuple[RunStatus, ...] = ("completed", "errored", "cancelled")


class RunResult(Struct, Generic[Out], frozen=True, kw_only=True):
    """The result of a run so far.

    With the status `waiting` it needs a human (see `requests`), or the `timeout` was up before it
    ended; `waiting_for` says what it waits for. `error` says why it errored. `usage` is that of the
    model calls of all agents that it started.
    """

    status: RunStatus
    output: Out | None = None
    error: Failure | None = None
    requests: tuple[Request, ...] = ()
    usage: TreeUsage = TreeUsage()
    waiting_for: WaitingFor | None = None

    def unwrap(self) -> Out:
        """Return the output of a completed run.

        Raises StillWaiting if it goes on, and RunError if it has errored or was cancelled.
        """
        if self.status not in ENDED:
            waits = f"waits for {in_words(self.waiting_for)}" if self.waiting_for else self.status
            raise StillWaiting(
                f"there is no output yet: the run {waits}; wait again",
                requests=[request.request_id for request in self.requests],
            )
        if self.status != "completed":
            error = self.error
            why = f"{error.code}: {error.message}" if error else self.status
            is_late = error is not None and error.code == DeadlineExceeded.code
            failed = DeadlineExceeded if is_late else RunError
            raise failed(f"there is no output: {why}", status=self.status)
        return self.output  # type: ignore[return-value]


class RunSession(Protocol):
    """A handle on the session that a run is, wherever that is."""

    async def info(self) -> SessionInfo: ...

    async def wait(self, *, timeout: Span | None = None) -> Result[Any]: ...


async def wait_for_run(session: RunSession, timeout: Span | None) -> RunResult[Any]:
    """Wait until a run has ended or needs a human, and return what it has come to, as plain data.

    When the `timeout` is up before, the result says how it stands by then.
    """
    found = await session.wait(timeout=timeout)
    status = OF_RESULT.get(found.status) or OF_SESSION[(await session.info()).status]
    if found.status == "running" and status in ENDED:
        return await wait_for_run(session, 0)  # it has ended between the two looks
    return RunResult(
        status=status,
        output=found.output,
        error=found.error,
        requests=found.requests,
        usage=found.usage,
        waiting_for=found.waiting_for,
    )


class RunInfo(Struct, frozen=True, kw_only=True):
    """The record of a run: its input, status, output and times.

    `input` and `output` are plain data. `started_at` is when a worker took the run up.
    """

    run_id: str
    workflow: str
    status: RunStatus
    input: Any = None
    output: Any = None
    error: Failure | None = None
    tenant: str = "default"
    principal: str = ""
    tags: Mapping[str, str] = {}
    retry_of: str = ""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    updated_at: datetime


class RunKind(Protocol):
    """A workflow, as a handle on a run of it needs it."""

    @property
    def name(self) -> str: ...

    def output_of(self, text: str, /) -> Any:
        """Return the output of a run from its JSON text."""
        ...


StartRun = Callable[[NewSession], Awaitable[Receipt[Any]]]
"""Starts a run that is described whole."""


class Run(Generic[Out]):
    """A handle on one run. It holds no state; make as many as you like."""

    def __init__(
        self,
        session: Session[Any],
        workflows: Mapping[str, RunKind],
        start: StartRun,
        receipt: Receipt[Any] | None = None,
    ) -> None:
        self.id: str = session.id
        self._session = session
        self._workflows = workflows
        self._start = start
        self.duplicate: bool = receipt.duplicate if receipt else False
        """Whether this `dispatch_id` had started the run before."""

    def __repr__(self) -> str:
        return f"Run({self.id})"

    async def info(self) -> SessionInfo:
        """Return the run as sessions are listed."""
        return await self._session.info()

    async def status(self) -> RunStatus:
        """Return the run's status."""
        return OF_SESSION[(await self.info()).status]

    # Out

    async def wait(self, *, timeout: Span | None = None) -> RunResult[Out]:
        """Wait until the run has ended or needs a human, and return its result.

        After the `timeout` the result says how the run stands by then.
        """
        found = await wait_for_run(self._session, timeout)
        if found.status != "completed":
            return found
        return replace(found, output=await self._typed(found.output))

    async def _typed(self, value: Any) -> Any:
        workflow = self._workflows.get((await self.info()).agent)
        return workflow.output_of(to_json(value)) if workflow else value

    def events(
        self,
        after: int | str = 0,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> AsyncIterator[Event]:
        """Yield all events of the run after a cursor, as `Session.events` does."""
        return self._session.events(after, follow=follow, internals=internals, children=children)

    async def meta(self) -> RunInfo:
        """Return the record of the run."""
        store, info = self._session._store, await self.info()
        page = await store.log.read(self.id, 0, 3)
        started, *others = (entry.record for entry in page.entries)
        assert isinstance(started, r.SessionStarted)
        queued = next(each for each in others if isinstance(each, r.DeliveryQueued))
        delivery = await store.listing.delivery(queued.delivery_id)
        outcome = None
        if info.over:
            outcome = await read_outcome(store, self.id, info.end + 1, lambda _: True)
        began = None
        if delivery and delivery.turn:
            began = await self._began(delivery.turn)
        return RunInfo(
            run_id=self.id,
            workflow=info.agent,
            status=OF_SESSION[info.status],
            input=from_json(queued.args or "null"),
            output=from_json(outcome.output) if outcome and outcome.output else None,
            error=outcome.error if outcome else info_error(info),
            tenant=info.tenant,
            principal=started.principal,
            tags=info.tags,
            retry_of=started.retry_of,
            created_at=info.created_at,
            started_at=began,
            ended_at=info.updated_at if info.over else None,
            updated_at=info.updated_at,
        )

    async def _began(self, turn: str) -> datetime | None:
        """Return when a worker took the run up: it stands near the beginning of its log."""
        cursor = 0
        for _ in range(4):
            page = await self._session._store.log.read(self.id, cursor, 50)
            for entry in page.entries:
                if isinstance(entry.record, r.TurnStarted) and entry.record.turn == turn:
                    return date_of(entry.at)
            if not page.entries:
                return None
            cursor = page.entries[-1].offset
        return None

    async def steps(self, *, after: str = "", limit: int | None = None) -> Sequence[RunStep]:
        """Return the steps of the run, in the order in which they began.

        With a `limit` so many at most; `after` is the `cursor` of the last step of the page before.
        """
        steps, _ = await read_steps(self._session._store, self.id, after, most_steps(limit))
        return steps

    async def explain(self) -> Explanation:
        """Say what the run does or waits for, and why."""
        return await self._session.explain()

    async def usage(self) -> TreeUsage:
        """Return what the agents of the run have used so far."""
        return await self._session.usage()

    async def requests(self) -> Sequence[Request]:
        """Return the questions that are open in the run and below it."""
        return await self._session.requests()

    # In

    async def answer(
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
        await self._session.answer(
            request,
            option,
            text=text,
            args=args,
            dispatch_id=dispatch_id,
            principal=principal,
        )

    async def retry(self, *, dispatch_id: str | None = None, principal: str = "") -> Run[Out]:
        """Start a new run that tries this one again, with the same input, and return it.

        Steps, answers, events and children that succeeded are taken over; steps that failed are
        done again; one that was cut off with the run is what its `on_interrupt` says. If this run
        was undone, the new one begins from the start; if its undo failed, the new one goes on with
        the undo. It has the queue, tags and webhook of this run, and as long until its deadline.
        NothingToRetry is raised unless this run has errored or was cancelled.
        """
        again = await retry_of(self._session._store, await self.info(), dispatch_id, principal)
        receipt = await self._start(again)
        return Run(receipt.session, self._workflows, self._start, receipt)

    async def send_event(
        self,
        name: str,
        payload: Any = None,
        *,
        dispatch_id: str | None = None,
        principal: str = "",
    ) -> None:
        """Send an event to the run; it is kept until the body waits for one of that name.

        The same `dispatch_id` again is the same event. Raises SessionOver if the run has ended.
        """
        sent = r.EventSent(
            delivery_id="",
            name=check_id("name of an event", name),
            payload=payload_of(name, payload),
            principal=check_who("principal", principal),
        )
        await self._session._add(await self.info(), sent, MAIN, f"session:{self.id}", dispatch_id)

    async def cancel(self, reason: str = "", *, principal: str = "") -> None:
        """End the run: stop it, and undo what it has done, as its body registered."""
        await self._session.end(reason, principal=principal)


def payload_of(name: str, payload: Any) -> str:
    """Return what an event carries as JSON text, if it is not too large."""
    text = to_json(payload, f"the payload of the event {name} is")
    if len(text) > MAX_MESSAGE:
        raise MessageTooLarge(
            f"the payload has {len(text):,} characters, and {MAX_MESSAGE:,} is the most",
            size=len(text),
            limit=MAX_MESSAGE,
        )
    return text
