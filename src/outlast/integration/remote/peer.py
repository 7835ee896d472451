"""The other server of a remote agent: what is sent to it, and the state that it shows.

Knows the wire and nothing of the call that asks. A server that is away raises ServerUnavailable;
every request can be sent again.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from functools import cached_property
from typing import Any

import httpx
from msgspec import Struct
from msgspec.structs import asdict, replace

from outlast.client import Client, RemoteSession
from outlast.core.event import Event
from outlast.core.instant import date_of, milliseconds_at
from outlast.core.record import NO_USAGE, Failure, UsageSum
from outlast.errors import (
    InvalidInput,
    InvalidServerAnswer,
    OutlastError,
    RequestClosed,
    ServerUnavailable,
    SessionOver,
    UnknownRequest,
    UnknownSession,
)
from outlast.integration.remote.limit import (
    LOOK_TIMEOUT,
    MAX_ANSWER,
    MAX_REASON,
    bounded_usage,
    check_end,
    check_event,
    check_events,
    check_number,
    check_relayed,
    check_requests,
    failure_of,
    sign_in_end_of,
    sign_in_of,
)
from outlast.session import Request
from outlast.session.start import NewSession, Webhook

NEWS = (
    *("session.completed", "session.failed", "session.ended"),
    *("request.opened", "request.resolved", "request.expired"),
)
NEWS_OF_SIGN_INS = ("authorization.required", "authorization.completed", "authorization.failed")


class RemoteRequest(Struct, frozen=True):
    """A request to the peer, under a key that makes repeats one."""

    key: str
    message: str
    can_ask: bool
    deadline: int = 0
    callback_secret: str = ""
    depth: int = 0


class RemoteStarted(Struct, frozen=True):
    """A session there; `calls_back` says whether its server has taken our address."""

    session_id: str
    calls_back: bool = False


class RemoteSignIn(Struct, frozen=True):
    """A sign-in that the peer waits for; `how` says how it ended, if it has."""

    request_id: str
    connection: str
    url: str
    expires_at: int
    principal: str
    path: tuple[str, ...]
    agent: str
    how: str = ""


class RemoteState(Struct, frozen=True):
    """How a session there stands: what it came to and used, if it is over, or what it asks."""

    status: str
    is_over: bool = False
    output: Any = None
    error: Failure | None = None
    requests: tuple[Request, ...] = ()
    sign_ins: tuple[RemoteSignIn, ...] = ()
    usage: UsageSum = NO_USAGE


class PeerClient(Client):
    """A client that also says for whom a session is started, which users of a client cannot."""

    async def start_described(self, new: NewSession) -> RemoteSession[Any]:
        """Start a session as it is described; its tenant and principal are the token's."""
        return await self._start(new)


class Peer:
    """One agent of one server."""

    def __init__(self, url: str, token: str | None, agent: str, retry_timeout: float) -> None:
        self.url = url
        self._token = token
        self._agent = agent
        self._timeout = retry_timeout
        Client(url, token)  # says at once what is wrong with URL and token

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The usual authorities, read once: that takes far longer than a look."""
        return httpx.create_ssl_context(trust_env=False)

    def _client(self) -> PeerClient:
        retry_timeout = self._timeout
        return PeerClient(
            self.url,
            self._token,
            retry_timeout=retry_timeout,
            stream_timeout=retry_timeout,
            max_answer=MAX_ANSWER,
            tls=self._tls,
        )

    async def start(self, wanted: RemoteRequest, callback_url: str) -> RemoteStarted:
        """Start a session, or find the one that was started so before."""
        new = NewSession(
            agent=self._agent,
            message=wanted.message,
            mode="task",
            dispatch_id=wanted.key,
            capabilities={"request_input": wanted.can_ask},
            deadline=date_of(wanted.deadline) if wanted.deadline else None,
            depth=wanted.depth,
        )
        events = (*NEWS, *NEWS_OF_SIGN_INS)
        webhook = Webhook(callback_url, events, wanted.callback_secret)
        async with self._client() as client:
            if callback_url:
                # If it posts nothing, or not to us, it is polled.
                with suppress(InvalidInput):
                    session = await client.start_described(replace(new, webhook=webhook))
                    return RemoteStarted(session.id, calls_back=True)
            return RemoteStarted((await client.start_described(new)).id)

    async def look(self, session_id: str, *, at_sign_ins: bool, relayed: int = 0) -> RemoteState:
        """Return how a session stands; what became of sign-ins only if that is asked for.

        `relayed` is how often it has asked by now. One that shows more than is relayed, or
        something else, is ended, and has failed.
        """
        try:
            async with asyncio.timeout(LOOK_TIMEOUT):
                seen = await self._look(session_id, at_sign_ins=at_sign_ins)
                if not seen.is_over:
                    check_relayed(relayed)
                return seen
        except TimeoutError:
            raise ServerUnavailable(
                f"the server at {self.url} did not show a session within {LOOK_TIMEOUT:g} s",
                url=self.url,
            ) from None
        except InvalidServerAnswer as error:
            with suppress(OutlastError):
                await self.end(session_id)
            return RemoteState("failed", True, error=Failure(error.code, error.message))

    async def _look(self, session_id: str, *, at_sign_ins: bool) -> RemoteState:
        async with self._client() as client:
            session = client.session(session_id)
            info = await session.info()
            waits = {each for wait in info.waits for each in wait.wait}
            sign_ins: tuple[RemoteSignIn, ...] = ()
            if at_sign_ins or "authorization" in waits:
                sign_ins = await sign_ins_of(session)
            if not info.over:
                check_requests(info.requests)
                return RemoteState(info.status, requests=info.requests, sign_ins=sign_ins)
            try:
                result = await session.wait(timeout=0)  # it is over: there is nothing to wait for
            except InvalidInput as why:
                raise InvalidServerAnswer(why.message) from None
            check_end(result)
            error = failure_of(result.error) if result.error else None
            return RemoteState(
                status=result.status,
                is_over=True,
                output=result.output,
                error=error,
                sign_ins=sign_ins,
                usage=bounded_usage(info.usage.total),
            )

    async def answer(
        self, session_id: str, key: str, request_id: str, option: str, text: str, args: Any
    ) -> str:
        """Answer a request, and return why that was refused, if it was."""
        async with self._client() as client:
            try:
                await client.session(session_id).answer(
                    request_id, option or None, text=text or None, args=args, dispatch_id=key
                )
            except (RequestClosed, UnknownRequest, SessionOver):
                return ""  # it was answered there, or is over, in the meantime
            except ServerUnavailable:
                raise
            except OutlastError as error:
                return error.message[:MAX_REASON]
        return ""

    async def end(self, session_id: str) -> None:
        """End a session, unless it is over or gone."""
        async with self._client() as client:
            with suppress(SessionOver, UnknownSession):
                await client.session(session_id).end("its caller does not wait")

    async def events(
        self, session_id: str, after: int | str, *, follow: bool
    ) -> AsyncIterator[Event]:
        """Yield the events of a session, as far as they may be shown."""
        number = 0
        async with self._client() as client:
            async for event in client.session(session_id).events(after, follow=follow):
                number += 1
                check_event(event)
                if not follow:  # else it has no end by itself
                    check_events(number)
                yield event


async def sign_ins_of(session: RemoteSession[Any]) -> tuple[RemoteSignIn, ...]:
    """Return all sign-ins that a session has asked for, and how those ended that have."""
    found: dict[str, RemoteSignIn] = {}
    number = 0
    async with aclosing(session.events(0, follow=False)) as events:
        async for event in events:
            number += 1
            check_events(number)
            if event.type == "authorization.required":
                asked = sign_in_of(event.data)
                fields = asdict(asked) | {"expires_at": milliseconds_at(asked.expires_at)}
                found[asked.request_id] = RemoteSignIn(**fields)
                check_number("sign-ins", sum(not each.how for each in found.values()))
            elif event.type in NEWS_OF_SIGN_INS:
                ended = sign_in_end_of(event.data)
                if known := found.get(ended.request_id):
                    is_done = event.type == "authorization.completed"
                    found[known.request_id] = replace(
                        known, how="completed" if is_done else ended.how
                    )
    return tuple(found.values())
