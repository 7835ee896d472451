"""The client of one server: starts sessions and runs there and finds those that exist.

Owns the arguments that an app in this process takes as well, and the route that each goes to. How
a request is sent and repeated is in `connection.py`; what can be done with one session is in
`session.py`, with one run in `run.py`.
"""

import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from typing_extensions import TypeVar

from outlast.agents.agent import Agent
from outlast.agents.budget import Budget, checked_budget
from outlast.client.budget import RemoteBudgets
from outlast.client.bulk import RemoteBulk
from outlast.client.connection import ServerConnection, check_secret, check_server, segment
from outlast.client.decode import WireReceipt, decode
from outlast.client.encode import (
    dispatch_out,
    failure_out,
    message_out,
    name_of,
    retry_failed_out,
    some,
    start_out,
    type_of,
)
from outlast.client.fleet import (
    RemoteChannels,
    RemoteDeployments,
    RemoteProviders,
    RemoteQueues,
    RemoteWorkers,
)
from outlast.client.listing import ListPage, WireRequests, WireSessions
from outlast.client.run import (
    RemoteRun,
    WireRuns,
    WireStarted,
    output_of,
    run_out,
    workflow_name,
)
from outlast.client.session import Bookmark, RemoteReceipt, RemoteSession, check_bookmark
from outlast.client.usage import RemoteUsage
from outlast.clock import Clock
from outlast.core.instant import Span
from outlast.core.lane import StartMode, Status
from outlast.core.message import Said
from outlast.core.name import MAIN, check_id
from outlast.core.setting import seconds_of, seconds_or_none
from outlast.core.tag import check_tags, tag_text
from outlast.errors import InvalidInput, UnknownSession
from outlast.session import Request
from outlast.session.queue import QueueEntry
from outlast.session.request import RequestKind
from outlast.session.router import Key, Token
from outlast.session.run import RunStatus
from outlast.session.run_list import RunSummary, check_run_status
from outlast.session.start import NewSession, Webhook
from outlast.store import SessionInfo
from outlast.workflows.workflow import Workflow

In = TypeVar("In", default=Any)
Out = TypeVar("Out", default=Any)

MAX_ANSWER = 256 * 2**20


class Client:
    """A server somewhere else, used like an app that is here.

    Args:
        url: Where the server is. No redirect is followed.
        token: A key that `outlast keys create` made.
        retry_timeout: How long a failed request is tried again; None is for ever.
        stream_timeout: The same for events and results, counted from when they were cut off.
        timeout: Bounds one try.
        silence: A stream without a sign of life for this long counts as cut off.
        max_answer: An answer, or an event of a stream, with more bytes is refused.
        trust_env: Use the proxies and certificates that the environment names.
        tls: Verifies a server whose certificate public authorities do not know.
        clock: For tests.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        retry_timeout: Span | None = 60.0,
        stream_timeout: Span | None = 60.0,
        timeout: Span = 30.0,
        silence: Span = 60.0,
        max_answer: int = MAX_ANSWER,
        trust_env: bool = False,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.url = check_server(url)
        self._clock = clock or Clock()
        self._connection = ServerConnection(
            self.url,
            check_secret(token),
            self._clock,
            retry_timeout=seconds_or_none("retry_timeout", retry_timeout),
            stream_timeout=seconds_or_none("stream_timeout", stream_timeout),
            timeout=seconds_of("timeout", timeout),
            silence=seconds_of("silence", silence),
            max_answer=max_answer,
            trust_env=trust_env,
            tls=tls,
        )

    @property
    def bulk(self) -> RemoteBulk:
        """Retries and cancels of many turns at once."""
        return RemoteBulk(self._connection)

    @property
    def workers(self) -> RemoteWorkers:
        """The workers of the server, and the lanes that they carry."""
        return RemoteWorkers(self._connection)

    @property
    def channels(self) -> RemoteChannels:
        """The channels of the server's app."""
        return RemoteChannels(self._connection)

    @property
    def queues(self) -> RemoteQueues:
        """The queues of the server."""
        return RemoteQueues(self._connection)

    @property
    def deployments(self) -> RemoteDeployments:
        """The named versions of the code that the workers of the server run."""
        return RemoteDeployments(self._connection)

    @property
    def providers(self) -> RemoteProviders:
        """The providers that do not answer the agents of the server."""
        return RemoteProviders(self._connection)

    @property
    def usage(self) -> RemoteUsage:
        """What models were used for, and what that has cost."""
        return RemoteUsage(self._connection)

    @property
    def budgets(self) -> RemoteBudgets:
        """What the tenant, its principals and its sessions may use."""
        return RemoteBudgets(self._connection)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    # Life

    async def open(self) -> None:
        """Make ready to call; the same as entering `async with client`."""
        await self._connection.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

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
        capabilities: Mapping[str, bool] | None = None,
        deadline: datetime | timedelta | None = None,
        budget: Budget | None = None,
        webhook: Webhook | None = None,
        tags: Mapping[str, str] | None = None,
        queue: str | QueueEntry | None = None,
        output_type: type[Out] | None = None,
    ) -> RemoteSession[Out]:
        """Start a session with a message; the message is durable when this returns.

        The same `dispatch_id` again returns the first session; with `retry_failed` its turn is
        tried again if it has failed, once per failed turn. Outputs are JSON values, or of the
        `output_type` that is given or that the agent has.
        """
        new = NewSession(
            agent=name_of(agent),
            message=message,
            mode=mode,
            dispatch_id=dispatch_id,
            retry_failed=retry_failed,
            continuation_token=continuation_token,
            lane=lane,
            capabilities=capabilities,
            deadline=deadline,
            budget=checked_budget("budget", budget),
            webhook=webhook,
            tags=tags,
            queue=queue,
        )
        return await self._start(new, type_of(agent, output_type))

    async def _start(self, new: NewSession, output_type: Any = None) -> RemoteSession[Any]:
        """Start a session that is described whole; its tenant and principal are the token's."""
        raw = await self._connection.call("POST", "/sessions", body=start_out(new, self._clock))
        receipt = self._receipt(raw, output_type, is_ours=new.dispatch_id is None)
        receipt.session.receipt = receipt
        return receipt.session

    def session(
        self, session_id: str, *, output_type: type[Any] | None = None
    ) -> RemoteSession[Any]:
        """Return a handle on a session; awaiting it makes sure that the session exists."""
        return RemoteSession(self._connection, session_id, output_type=output_type)

    def resume(
        self, bookmark: Bookmark, *, output_type: type[Any] | None = None
    ) -> RemoteSession[Any]:
        """Return a handle on a session whose events continue after a bookmark."""
        found = check_bookmark(bookmark)
        return RemoteSession(
            self._connection,
            found["session_id"],
            output_type=output_type,
            token=found["continuation_token"],
            cursor=found["after"],
        )

    async def send(
        self,
        to: Token | Key,
        message: Said,
        *,
        dispatch_id: str | None = None,
        retry_failed: bool = False,
        tags: Mapping[str, str] | None = None,
        output_type: type[Any] | None = None,
    ) -> RemoteReceipt[Any]:
        """Send a message to an address; start a session there if there is none.

        A `Token` starts one only if it names an agent. The same `dispatch_id` again returns the
        first receipt; with `retry_failed` the message's turn is tried again if it has failed, and
        the receipt is that of the retry. A session that this starts gets the `tags`.
        """
        if isinstance(to, Token):
            path = "/deliver"
            agent = None if to.agent is None else name_of(to.agent)
            where = some(continuation_token=to.token, agent=agent)
        elif isinstance(to, Key):
            path = f"/agents/{segment(name_of(to.agent))}/{segment(check_id('key', to.key))}"
            where = {}
        else:
            raise InvalidInput(f"a message is sent to a Token or a Key, not to {to!r}")
        body = {
            **where,
            "message": message_out(message),
            "dispatch_id": dispatch_out(dispatch_id, self._clock),
            **retry_failed_out(retry_failed, dispatch_id),
            **some(tags=check_tags(tags) or None),
        }
        raw = await self._connection.call("POST", path, body=body)
        return self._receipt(raw, type_of(to.agent, output_type), is_ours=dispatch_id is None)

    # Runs

    async def run(
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
    ) -> RemoteRun[Out]:
        """Start a run of a workflow; the run is durable when this returns.

        The same `dispatch_id` again returns the first run, also after it has ended; with another
        input it raises DispatchConflict. Outputs are JSON values, or of the `output_type` that is
        given or that the workflow has.
        """
        new = NewSession(
            agent=workflow_name(workflow),
            message="",
            mode="run",
            dispatch_id=dispatch_id,
            delay=delay,
            deadline=deadline,
            tags=tags,
            capabilities=capabilities,
            webhook=webhook,
            queue=queue,
        )
        body = run_out(new, workflow, input, self._clock)
        path = f"/workflows/{segment(check_id('workflow', new.agent))}"
        found = decode(await self._connection.call("POST", path, body=body), WireStarted)
        kind = output_of(workflow, output_type)
        return found.run(self._connection, kind, is_ours=dispatch_id is None)

    def get_run(self, run_id: str, *, output_type: type[Any] | None = None) -> RemoteRun[Any]:
        """Return a handle on a run; awaiting it makes sure that the run exists."""
        return RemoteRun(self._connection, run_id, output_type=output_type)

    async def runs(
        self,
        workflow: Workflow[Any, Any] | str | None = None,
        *,
        status: RunStatus | None = None,
        tags: Mapping[str, str] | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> ListPage[RunSummary]:
        """List runs, newest first; `before` is the `cursor` of the page before.

        With `tags`, only those that were started with all of them.
        """
        name = workflow_name(workflow) if workflow is not None else None
        check_run_status(status)
        query = some(workflow=name, status=status, cursor=before, limit=limit)
        query |= some(tag=[tag_text(*tag) for tag in check_tags(tags).items()] or None)
        found = decode(await self._connection.call("GET", "/runs", query=query), WireRuns)
        return ListPage((each.item() for each in found.runs), found.next_cursor)

    async def erase(self, session_id: str, *, cancel_remote: bool = True) -> None:
        """End a session and erase it with its children, at once and for good.

        Its sessions at remote agents are ended first, unless `cancel_remote=False`.
        """
        path = f"/sessions/{segment(check_id('session_id', session_id))}"
        query = None if cancel_remote else {"cancel_remote": "false"}
        await self._connection.call("DELETE", path, query=query, done=(UnknownSession,))

    def _receipt(self, raw: bytes, output_type: Any, *, is_ours: bool) -> RemoteReceipt[Any]:
        given = decode(raw, WireReceipt)
        session: RemoteSession[Any] = RemoteSession(
            self._connection,
            given.session_id,
            output_type=output_type,
            token=given.continuation_token,
        )
        return RemoteReceipt(session, given, is_ours=is_ours)

    # Listings

    async def sessions(
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
        """List sessions, newest first; `before` is the `cursor` of the page before.

        With `tags`, only those that were started with all of them. With `failed`, only those whose
        last turn failed: with this `code`, in this `queue`, at this instant or later.
        """
        query = some(agent=agent, queue=queue, status=status, cursor=before, limit=limit)
        query |= some(tag=[tag_text(*tag) for tag in check_tags(tags).items()] or None)
        query |= failure_out(failed, code, since, self._clock)
        raw = await self._connection.call("GET", "/sessions", query=query)
        found = decode(raw, WireSessions)
        return ListPage((each.item() for each in found.sessions), found.next_cursor)

    async def requests(
        self,
        *,
        session_id: str | None = None,
        agent: str | None = None,
        kinds: Sequence[RequestKind] | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> ListPage[Request]:
        """List open questions to humans across sessions, oldest first."""
        query = some(session_id=session_id, agent=agent, kind=kinds, cursor=after, limit=limit)
        raw = await self._connection.call("GET", "/requests", query=query)
        found = decode(raw, WireRequests)
        return ListPage((each.value() for each in found.requests), found.next_cursor)
