"""How messages find their sessions: at a start, by a continuation token, by a key.

Admits and gives handles; what becomes of a message is for workers to say.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from outlast.agents.agent import Agent, Agents, name_of
from outlast.clock import Clock
from outlast.core.message import Said, content_of
from outlast.core.name import MAIN, check_dispatch, check_id, check_token, check_who
from outlast.core.record import DeliveryQueued
from outlast.core.tag import check_tags
from outlast.errors import (
    InvalidInput,
    NoActiveSession,
    SessionOver,
    TokenTaken,
    UnknownSession,
)
from outlast.session.handle import AddressedMessage, Receipt, Session, send_addressed
from outlast.session.inbox import ANYBODY, Inbox, fingerprint_of, keyed_token
from outlast.session.retry import AcceptedMessage, check_retry_failed, retry_if_failed
from outlast.session.start import NewSession, SessionStarter
from outlast.store import AdmissionReceipt as StoreReceipt
from outlast.store import Store

NOWHERE = ""
"""The id of no session: only what was sent before can be sent there again."""


class Token(Struct, frozen=True):
    """A continuation token, as the address of a message.

    With an `agent`, a session of it is started if no living session has the token.
    """

    token: str
    agent: Agent[Any, Any] | str | None = None


class Key(Struct, frozen=True):
    """The address of an agent's one session with this key; the first message starts it."""

    agent: Agent[Any, Any] | str
    key: str


class SessionRouter:
    """Routes a message to its session, and starts the session if there is none."""

    def __init__(
        self,
        agents: Agents,
        store: Store,
        clock: Clock,
        inbox: Inbox,
        starter: SessionStarter,
    ) -> None:
        self._agents = agents
        self._store = store
        self._clock = clock
        self._inbox = inbox
        self._starter = starter

    def handle(self, session_id: str, receipt: StoreReceipt | None = None) -> Session[Any]:
        """Return what users hold of a session."""
        return Session(session_id, self._store, self._clock, self._agents, self._inbox, receipt)

    async def start(self, new: NewSession) -> Session[Any]:
        """Start a session of an agent that this app has."""
        name_of(new.agent, self._agents)
        if new.continuation_token is not None:
            check_token(new.continuation_token)
        receipt = await self._starter.start(new)
        if new.retry_failed:
            receipt = await self._retried(receipt, new.principal) or receipt
        return self.handle(receipt.session_id, receipt)

    async def run(self, new: NewSession) -> Receipt[Any]:
        """Start a run of a workflow that this app has."""
        receipt = await self._starter.start(new)
        return Receipt(self.handle(receipt.session_id), receipt)

    async def _retried(self, sent: AcceptedMessage, principal: str) -> StoreReceipt | None:
        return await retry_if_failed(self._store, self._inbox, sent, principal)

    async def deliver(
        self,
        token: str,
        message: Said,
        *,
        agent: Agent[Any, Any] | str | None,
        dispatch_id: str | None,
        tenant: str,
        principal: str,
        retry_failed: bool = False,
        scope: str = ANYBODY,
        tags: Mapping[str, str] | None = None,
    ) -> Receipt[Any]:
        """Send a message to the living session that a token leads to, else to a new one."""
        if retry_failed:
            check_retry_failed(dispatch_id)
        addressed = addressed_to("deliver", token, message, dispatch_id, tenant, principal)
        addressed = replace(addressed, scope=scope, tags=check_tags(tags))
        receipt = await self._bring(addressed, agent, living=True)
        return await self._newest(receipt, principal) if retry_failed else receipt

    async def _newest(self, receipt: Receipt[Any], principal: str) -> Receipt[Any]:
        """Return the receipt of a message's newest try, after a retry if that has failed."""
        retried = await self._retried(receipt, principal)
        return Receipt(receipt.session, retried) if retried else receipt

    async def send(
        self,
        to: Token | Key,
        message: Said,
        *,
        dispatch_id: str | None,
        tenant: str,
        principal: str,
        retry_failed: bool = False,
        tags: Mapping[str, str] | None = None,
    ) -> Receipt[Any]:
        """Send a message to an address, and start a session there if it needs one."""
        if isinstance(to, Token):
            return await self.deliver(
                check_token(to.token),
                message,
                agent=to.agent,
                dispatch_id=dispatch_id,
                tenant=tenant,
                principal=principal,
                retry_failed=retry_failed,
                tags=tags,
            )
        if not isinstance(to, Key):
            raise InvalidInput(f"a message is sent to a Token or a Key, not to {to!r}")
        if retry_failed:
            check_retry_failed(dispatch_id)
        addressed = addressed_to("key", self._token_of(to), message, dispatch_id, tenant, principal)
        addressed = replace(addressed, tags=check_tags(tags))
        receipt = await self._bring(addressed, to.agent, living=False)
        return await self._newest(receipt, principal) if retry_failed else receipt

    async def find(self, key: Key, tenant: str) -> str | None:
        """Return the session of an agent that has a key, over or not."""
        token = self._token_of(key)
        return await self._store.listing.find_token(check_id("tenant", tenant), token, living=False)

    def _token_of(self, key: Key) -> str:
        return keyed_token(name_of(key.agent, self._agents), key.key)

    async def _bring(
        self, message: AddressedMessage, agent: Agent[Any, Any] | str | None, *, living: bool
    ) -> Receipt[Any]:
        # Another caller may start or end the session between the look and the write.
        for is_last in (False, False, True):
            found = await self._store.listing.find_token(
                message.tenant, message.token, living=living
            )
            try:
                if found:
                    return await send_addressed(self.handle(found), message)
                if agent is None:
                    # The same message may have been accepted while the token still led somewhere:
                    # then its receipt is the answer.
                    return await self._repeat(message)
                return await self._start_at(message, agent)
            except TokenTaken:  # another caller was quicker: the key leads to its session
                if is_last:
                    raise
            except SessionOver:  # it has ended since: it leads there no longer
                if is_last or not living:
                    raise
        raise AssertionError

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
                fingerprint=message.fingerprint,
            )
        except UnknownSession:
            raise NoActiveSession("no living session has this continuation token") from None
        return Receipt(self.handle(receipt.session_id), receipt)

    async def _start_at(
        self, message: AddressedMessage, agent: Agent[Any, Any] | str
    ) -> Receipt[Any]:
        """Start a session that a message's token leads to from now on."""
        receipt = await self._starter.start(
            NewSession(
                agent=name_of(agent, self._agents),
                message=message.content,
                dispatch_id=message.dispatch_id,
                continuation_token=message.token,
                tenant=message.tenant,
                principal=message.principal,
                sender=message.principal,
                scope=message.scope,
                fingerprint=message.fingerprint,
                tags=message.tags,
            )
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
        fingerprint_of(how, token, content) if dispatch_id else "",
        check_dispatch(dispatch_id),
        check_id("tenant", tenant),
        check_who("principal", principal),
    )
