"""How messages find their sessions: at a start, by a continuation token, by a key.

Admits and gives handles; what becomes of a message is for workers to say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outlast.agents.agent import Agent
from outlast.agents.registry import Agents, name_of
from outlast.agents.subscription import StartingSession
from outlast.clock import Clock
from outlast.core.message import Content, Said, content_of
from outlast.core.name import MAIN, check_dispatch, check_id, check_token, check_who
from outlast.core.record import DeliveryQueued, NewOutboxCursor, SessionStarted
from outlast.errors import (
    InvalidInput,
    NoActiveSession,
    SessionOver,
    TokenTaken,
    UnknownSession,
)
from outlast.net.signature import secrets_of
from outlast.session import Receipt, Session
from outlast.session.inbox import ANYBODY, Inbox, fingerprint, instant_of, keyed_token
from outlast.store import AdmissionReceipt as StoreReceipt
from outlast.store import Store

NOWHERE = ""
"""The id of no session: only what was sent before can be sent there again."""
MOST_ABOVE = 1000


class NewSession(Struct, frozen=True, kw_only=True):
    """What a caller wants of a new session, as it was said: see `Outlast.start`."""

    mode: str
    dispatch_id: str | None
    token: str | None
    lane: str
    tenant: str
    principal: str
    capabilities: Mapping[str, bool] | None
    deadline: datetime | timedelta | None
    webhook_url: str | None
    webhook_events: Sequence[str] | None
    webhook_secret: str
    depth: int


class AddressedMessage(Struct, frozen=True):
    """A message on its way to where a token leads.

    `mark` tells it from others of its dispatch, `scope` is within what dispatches are compared.
    """

    token: str
    content: Content
    mark: str
    dispatch_id: str | None
    tenant: str
    principal: str
    scope: str = ANYBODY


CursorsOf = Callable[[StartingSession], tuple[NewOutboxCursor, ...]]
"""Returns the outbox cursors that a new session needs."""


class SessionRouter:
    """Brings messages to sessions, and starts those that there are not yet; no envoys', though."""

    def __init__(
        self,
        agents: Agents,
        envoys: Agents,
        store: Store,
        clock: Clock,
        inbox: Inbox,
        cursors: CursorsOf,
    ) -> None:
        self._agents = agents
        self._all = {**agents, **envoys}
        self._store = store
        self._clock = clock
        self._inbox = inbox
        self._cursors_of = cursors

    def handle(self, session_id: str, receipt: StoreReceipt | None = None) -> Session[Any]:
        """Return what users hold of a session."""
        return Session(session_id, self._store, self._clock, self._all, self._inbox, receipt)

    async def start(
        self, agent: Agent[Any, Any] | str, message: Said, terms: NewSession
    ) -> Session[Any]:
        """Start a session on the caller's terms."""
        started = self._started(agent, terms)
        receipt = await self._inbox.start(
            started,
            content_of(message),
            lane=check_id("lane", terms.lane),
            dispatch_id=terms.dispatch_id,
            webhook_secret="".join(secrets_of(terms.webhook_secret)),
        )
        return self.handle(receipt.session_id, receipt)

    def _started(self, agent: Agent[Any, Any] | str, terms: NewSession) -> SessionStarted:
        """Return a session's first record, if its terms can be met."""
        check_terms(terms)
        name = name_of(agent, self._agents)
        return SessionStarted(
            agent=name,
            mode=terms.mode,
            can_ask=can_ask(terms.capabilities or {}),
            tenant=check_id("tenant", terms.tenant),
            principal=check_who("principal", terms.principal),
            token=terms.token or self._clock.token(),
            deadline_at=instant_of(terms.deadline, self._clock.now(), terms.dispatch_id),
            outbox=self._cursors_of(
                StartingSession(
                    name,
                    url=terms.webhook_url,
                    events=terms.webhook_events,
                    secret=terms.webhook_secret,
                )
            ),
            depth=terms.depth,
        )

    async def deliver(
        self,
        token: str,
        message: Said,
        *,
        agent: Agent[Any, Any] | str | None,
        dispatch_id: str | None,
        tenant: str,
        principal: str,
        scope: str = ANYBODY,
    ) -> Receipt[Any]:
        """Send a message to the living session that a token leads to, else to a new one."""
        addressed = addressed_to("deliver", token, message, dispatch_id, tenant, principal)
        addressed = replace(addressed, scope=scope)
        return await self._bring(addressed, agent, living=True)

    async def prompt(
        self,
        agent: Agent[Any, Any] | str,
        key: str,
        message: Said,
        *,
        dispatch_id: str | None,
        tenant: str,
        principal: str,
    ) -> Receipt[Any]:
        """Send a message to the one session of an agent that has a key, over or not."""
        token = keyed_token(name_of(agent, self._agents), key)
        addressed = addressed_to("prompt", token, message, dispatch_id, tenant, principal)
        return await self._bring(addressed, agent, living=False)

    async def find(self, agent: Agent[Any, Any] | str, key: str, tenant: str) -> str | None:
        """Return the session of an agent that has a key, over or not."""
        token = keyed_token(name_of(agent, self._agents), key)
        return await self._store.find_token(check_id("tenant", tenant), token, living=False)

    async def _bring(
        self, message: AddressedMessage, agent: Agent[Any, Any] | str | None, *, living: bool
    ) -> Receipt[Any]:
        for is_last in (False, False, True):
            found = await self._store.find_token(message.tenant, message.token, living=living)
            try:
                if found:
                    return await self._send_to(found, message)
                if agent is None:
                    return await self._repeat(message)
                return await self._start_at(message, agent)
            except TokenTaken:  # somebody was quicker: it leads to theirs
                if is_last:
                    raise
            except SessionOver:  # it has ended since: it leads there no longer
                if is_last or not living:
                    raise
        raise AssertionError

    async def _send_to(self, session_id: str, message: AddressedMessage) -> Receipt[Any]:
        return await self.handle(session_id).send(
            message.content,
            dispatch_id=message.dispatch_id,
            principal=message.principal,
            scope=message.scope,
            mark=message.mark,
        )

    async def _repeat(self, message: AddressedMessage) -> Receipt[Any]:
        """Return the receipt that a message had before its token came to lead nowhere."""
        queued = DeliveryQueued(
            delivery_id="", content=message.content, principal=message.principal
        )
        try:
            receipt = await self._inbox.add(
                NOWHERE,
                message.tenant,
                MAIN,
                queued,
                scope=message.scope,
                dispatch_id=message.dispatch_id,
                mark=message.mark,
            )
        except UnknownSession:
            raise NoActiveSession("no living session has this continuation token") from None
        return Receipt(self.handle(receipt.session_id), receipt)

    async def _start_at(
        self, message: AddressedMessage, agent: Agent[Any, Any] | str
    ) -> Receipt[Any]:
        """Start a session that a message's token leads to from now on."""
        name = name_of(agent, self._agents)
        started = SessionStarted(
            agent=name,
            tenant=message.tenant,
            token=message.token,
            principal=message.principal,
            outbox=self._cursors_of(StartingSession(name, token=message.token)),
        )
        receipt = await self._inbox.start(
            started,
            message.content,
            lane=MAIN,
            dispatch_id=message.dispatch_id,
            scope=message.scope,
            mark=message.mark,
            principal=message.principal,
        )
        return Receipt(self.handle(receipt.session_id), receipt)


def addressed_to(
    how: str, token: str, message: Said, dispatch_id: str | None, tenant: str, principal: str
) -> AddressedMessage:
    """Return a message for where a token leads, if it can be sent at all."""
    content = content_of(message)
    return AddressedMessage(
        token,
        content,
        fingerprint(how, token, content),
        check_dispatch(dispatch_id),
        check_id("tenant", tenant),
        check_who("principal", principal),
    )


def check_terms(terms: NewSession) -> None:
    """Say what is wrong with a new session's terms before anything is looked up."""
    if terms.mode not in ("conversation", "task"):
        raise InvalidInput(f'mode is "conversation" or "task", not {terms.mode!r}')
    check_dispatch(terms.dispatch_id)
    if terms.token is not None:
        check_token(terms.token)
    if type(terms.depth) is not int or not 0 <= terms.depth <= MOST_ABOVE:
        raise InvalidInput(f"depth is a number of sessions above, 0 to {MOST_ABOVE}")
    if terms.webhook_secret and terms.webhook_url is None:
        raise InvalidInput("a webhook_secret needs a webhook_url whose events it signs")


def can_ask(capabilities: Mapping[str, bool]) -> bool:
    if not isinstance(capabilities, Mapping):
        raise InvalidInput('capabilities are a mapping: {"request_input": False}')
    unknown = set(capabilities) - {"request_input"}
    if unknown:
        raise InvalidInput(f"there is no capability {', '.join(sorted(map(str, unknown)))}")
    return bool(capabilities.get("request_input", True))
