"""A run on a server, held like one that is here; and how runs go over the wire.

Owns the routes of runs. What a run shares with sessions (its stream, its result, its requests) it
reads as the session that it is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from datetime import datetime
from typing import Any, Generic

from msgspec import Struct
from typing_extensions import TypeVar

from outlast.agents.runtime.json_value import to_json
from outlast.client.connection import ServerConnection, segment
from outlast.client.decode import decode
from outlast.client.encode import (
    deadline_out,
    dispatch_out,
    queue_out,
    some,
    webhook_out,
)
from outlast.client.info import RemoteInfo
from outlast.client.session import RemoteSession
from outlast.clock import Clock
from outlast.core.event import Event
from outlast.core.instant import Span, milliseconds
from outlast.core.json_text import parse_json
from outlast.core.name import check_id
from outlast.core.record import Failure
from outlast.core.tag import check_tags
from outlast.core.usage import TreeUsage
from outlast.errors import SessionOver, UnknownRun, UnknownSession
from outlast.session import Request
from outlast.session.run import (
    OF_SESSION,
    RunInfo,
    RunResult,
    RunStatus,
    payload_of,
    wait_for_run,
)
from outlast.session.run_history import RunStep, StepStatus, most_steps
from outlast.session.run_list import RunSummary
from outlast.session.start import NewSession
from outlast.workflows.workflow import Workflow

Out = TypeVar("Out", default=Any)


class RemoteRun(Generic[Out]):
    """A handle on one run of a server. Awaiting it makes sure that the run exists."""

    def __init__(
        self,
        connection: ServerConnection,
        run_id: str,
        *,
        output_type: Any = None,
        duplicate: bool = False,
    ) -> None:
        self.id: str = check_id("run_id", run_id)
        self._connection = connection
        self._path = f"/runs/{segment(run_id)}"
        self._session = RemoteSession[Any](connection, run_id, output_type=output_type)
        self._output_type = output_type
        self.duplicate: bool = duplicate
        """Whether this `dispatch_id` had started the run before."""

    def __repr__(self) -> str:
        return f"RemoteRun({self.id})"

    def __await__(self) -> Generator[Any, None, RemoteRun[Out]]:
        return self._known().__await__()

    async def _known(self) -> RemoteRun[Out]:
        await self.meta()
        return self

    async def info(self) -> RemoteInfo:
        """Return the run as sessions are listed."""
        with in_words_of_runs(self.id):
            return await self._session.info()

    async def status(self) -> RunStatus:
        """Return the run's status."""
        return OF_SESSION[(await self.info()).status]

    # Out

    async def wait(self, *, timeout: Span | None = None) -> RunResult[Out]:
        """Wait until the run has ended or needs a human, and return its result.

        After the `timeout` the result says how the run stands by then.
        """
        with in_words_of_runs(self.id):
            return await wait_for_run(self._session, timeout)

    async def events(
        self,
        after: int | str = 0,
        *,
        follow: bool = True,
        internals: bool = False,
        children: bool = False,
    ) -> AsyncGenerator[Event, None]:
        """Yield all events of the run after a cursor, as `RemoteSession.events` does."""
        events = self._session.events(after, follow=follow, internals=internals, children=children)
        with in_words_of_runs(self.id):
            async with aclosing(events):
                async for event in events:
                    yield event

    async def meta(self) -> RunInfo:
        """Return the record of the run; the server does not say whose it is."""
        raw = await self._connection.call("GET", self._path, query={"meta": "true"})
        return decode(raw, WireRun).value()

    async def steps(self, *, after: str = "", limit: int | None = None) -> Sequence[RunStep]:
        """Return the steps of the run, in the order in which they began.

        With a `limit` so many at most; `after` is the `cursor` of the last step of the page before.
        """
        left = most_steps(limit)
        found: list[RunStep] = []
        more: str | None = after
        while more is not None and left != 0:
            query = some(cursor=more or None, limit=min(left or MOST_STEPS, MOST_STEPS))
            raw = await self._connection.call("GET", f"{self._path}/steps", query=query)
            page = decode(raw, WireSteps)
            found += (step.known() for step in page.steps)
            left = None if left is None else left - len(page.steps)
            more = page.next_cursor
        return found

    async def usage(self) -> TreeUsage:
        """Return what the agents of the run have used so far."""
        return (await self.info()).usage

    async def requests(self) -> Sequence[Request]:
        """Return the questions that are open in the run and below it."""
        return (await self.info()).requests

    # In

    async def answer(
        self,
        request_id: str,
        option: str | None = None,
        *,
        text: str | None = None,
        args: Mapping[str, Any] | None = None,
        dispatch_id: str | None = None,
    ) -> None:
        """Answer an open request of the run."""
        with in_words_of_runs(self.id):
            await self._session.answer(
                request_id, option, text=text, args=args, dispatch_id=dispatch_id
            )

    async def retry(self, *, dispatch_id: str | None = None) -> RemoteRun[Out]:
        """Start a new run that tries this one again, with what has succeeded, and return it.

        The same `dispatch_id` again is the same retry.
        """
        body = {"dispatch_id": self._dispatch(dispatch_id)}
        raw = await self._connection.call("POST", f"{self._path}/retry", body=body)
        is_ours = dispatch_id is None
        return decode(raw, WireStarted).run(self._connection, self._output_type, is_ours=is_ours)

    async def send_event(
        self, name: str, payload: Any = None, *, dispatch_id: str | None = None
    ) -> None:
        """Send an event to the run; it is kept until the body waits for one of that name.

        The same `dispatch_id` again is the same event.
        """
        given = parse_json(payload_of(name, payload))
        dispatch = self._dispatch(dispatch_id)
        body = {"name": check_id("name of an event", name), "payload": given}
        await self._connection.call(
            "POST", f"{self._path}/events", body={**body, "dispatch_id": dispatch}
        )

    async def cancel(self, reason: str = "") -> None:
        """End the run: stop it, and undo what it has done, as its body registered."""
        await self._connection.call(
            "POST", f"{self._path}/cancel", body={"reason": reason}, done=(SessionOver,)
        )

    def _dispatch(self, dispatch_id: str | None) -> str:
        return dispatch_out(dispatch_id, self._connection.clock)


@contextmanager
def in_words_of_runs(run_id: str) -> Iterator[None]:
    """Say of a session that the server does not know that it is no run there."""
    try:
        yield
    except UnknownSession:
        raise UnknownRun(f"there is no run {run_id}", run=run_id) from None


MOST_STEPS = 200
"""The steps of one page."""


class WireStarted(Struct):
    run_id: str
    duplicate: bool = False

    def run(
        self, connection: ServerConnection, output_type: Any, *, is_ours: bool
    ) -> RemoteRun[Any]:
        """Return its handle. With `is_ours` a duplicate is a second try of this client."""
        is_duplicate = self.duplicate and not is_ours
        return RemoteRun(connection, self.run_id, output_type=output_type, duplicate=is_duplicate)


class WireSummary(Struct):
    run_id: str
    workflow: str
    status: RunStatus
    created_at: datetime
    updated_at: datetime
    tags: dict[str, str] = {}

    def item(self) -> RunSummary:
        return RunSummary(tenant="", **self._fields())

    def _fields(self) -> dict[str, Any]:
        names = WireSummary.__struct_fields__
        return {name: getattr(self, name) for name in names}


class WireRuns(Struct):
    runs: tuple[WireSummary, ...]
    next_cursor: str | None = None


class WireRun(WireSummary):
    """The record of a run."""

    input: Any = None
    output: Any = None
    error: Failure | None = None
    retry_of: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None

    def value(self) -> RunInfo:
        return RunInfo(
            **self._fields(),
            input=self.input,
            output=self.output,
            error=self.error,
            tenant="",
            retry_of=self.retry_of or "",
            started_at=self.started_at,
            ended_at=self.ended_at,
        )


class WireStep(Struct):
    name: str
    status: StepStatus
    attempt: int
    value: Any = None
    error: Failure | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cursor: str = ""

    def known(self) -> RunStep:
        return RunStep(**{name: getattr(self, name) for name in WireStep.__struct_fields__})


class WireSteps(Struct):
    steps: tuple[WireStep, ...]
    next_cursor: str | None = None


def run_out(
    new: NewSession, workflow: Workflow[Any, Any] | str, given: Any, clock: Clock
) -> dict[str, Any]:
    """Return a start of a run as the server takes it; the input of a known workflow is checked."""
    if isinstance(workflow, Workflow):
        text = workflow.input_text(given)
    else:
        text = to_json(given, f"the input of {new.agent} is")
    return some(
        input=parse_json(text),
        dispatch_id=dispatch_out(new.dispatch_id, clock),
        delay=milliseconds(new.delay) / 1000 or None,
        deadline=deadline_out(new.deadline, clock, new.dispatch_id),
        tags=check_tags(new.tags) or None,
        capabilities=new.capabilities,
        webhook=webhook_out(new.webhook) if new.webhook else None,
        queue=queue_out(new.queue) if new.queue else None,
    )


def workflow_name(workflow: Workflow[Any, Any] | str) -> str:
    return workflow if isinstance(workflow, str) else workflow.name


def output_of(workflow: Workflow[Any, Any] | str, output_type: Any) -> Any:
    """Return the type of a workflow's outputs: the one that was given, or the workflow's own."""
    if output_type is None and isinstance(workflow, Workflow):
        output_type = workflow.output_type
    return None if output_type is type(None) else output_type
