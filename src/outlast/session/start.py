"""A start: everything that it says, and how it becomes a session's first two records.

`NewSession` is made at the edge (the app, the server, the client, a schedule, a channel) and is
carried to the record whole. Knows no agents: names are resolved by `session/router.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import get_args

from msgspec import Struct
from msgspec.structs import replace

from outlast.agents.budget import Budget, checked_budget
from outlast.agents.subscription import StartingSession
from outlast.clock import Clock
from outlast.core import record as r
from outlast.core.instant import Span, milliseconds
from outlast.core.lane import SessionMode, StartMode
from outlast.core.message import Content, Said, content_of
from outlast.core.name import MAIN, args_digest, check_dispatch, check_id, check_who
from outlast.core.tag import check_tags
from outlast.errors import InvalidInput, TokenTaken
from outlast.net.signature import secrets_of
from outlast.session.inbox import ANYBODY, Inbox, fingerprint_of, instant_of, with_secret
from outlast.session.queue import QueueEntry, SessionPlaces
from outlast.session.retry import check_retry_failed
from outlast.store import Admission, AdmissionReceipt

MOST_ABOVE = 1000
RUN = "run"

CursorsOf = Callable[[StartingSession], tuple[r.NewOutboxCursor, ...]]
"""Returns the outbox cursors that a new session needs."""


class Webhook(Struct, frozen=True):
    """Where the events of one session are posted.

    Without `events`: how turns and the session end, and requests to humans. Posts are signed with
    the `secret`, or with that of the app's WebhookSettings.
    """

    url: str
    events: Sequence[str] | None = None
    secret: str = ""

    def __repr__(self) -> str:
        return f"Webhook({self.url!r})"


class NewSession(Struct, frozen=True, kw_only=True):
    """A session to start, as it was said: see `Outlast.start`.

    `sender` is who sent the first message, where that is not only the principal. `depth` counts
    the sessions of other apps that it is started for. A `dispatch_id` is compared with others of
    its `scope` by the `fingerprint`, which is made of the start itself unless it is given.
    `retry_failed` is no part of that. A session that goes on in another store than it began in
    keeps its `session_id`. A run has an `input` as JSON text and no message. What is started begins
    after the `delay`. Its turns stand in the `queue`, or in that of its agent. A run that tries
    another again has the `place` of that one, and its events are told to its `outbox`, too.
    """

    agent: str
    message: Said
    mode: SessionMode = "conversation"
    dispatch_id: str | None = None
    retry_failed: bool = False
    continuation_token: str | None = None
    lane: str = MAIN
    tenant: str = "default"
    principal: str = ""
    sender: str = ""
    capabilities: Mapping[str, bool] | None = None
    deadline: datetime | timedelta | None = None
    budget: Budget | None = None
    webhook: Webhook | None = None
    depth: int = 0
    tags: Mapping[str, str] | None = None
    scope: str = ANYBODY
    fingerprint: str = ""
    session_id: str = ""
    input: str = ""
    delay: Span = 0.0
    retry_of: str = ""
    seed: str = ""
    queue: str | QueueEntry | None = None
    place: r.QueuePlace | None = None
    outbox: tuple[r.NewOutboxCursor, ...] = ()
    inherited: r.JournalInherited | None = None


class SessionStarter:
    """Writes starts into the store; the same `dispatch_id` again finds the first session."""

    def __init__(
        self,
        inbox: Inbox,
        clock: Clock,
        cursors: CursorsOf,
        places: SessionPlaces | None = None,
    ) -> None:
        self._inbox = inbox
        self._clock = clock
        self._cursors_of = cursors
        self._places = places

    async def start(self, new: NewSession) -> AdmissionReceipt:
        """Create a session with its first message; the secret of its webhook is in no log.

        In a queue that is a singleton this is the receipt of the living session, if there is one.
        """
        check(new)
        place, token = None, ""
        if self._places:
            place, token, delay = await self._places.find(new)
            new = replace(new, delay=max(milliseconds(new.delay), delay) / 1000) if delay else new
        # Only a singleton has to look for a living session.
        if not token:
            return await self._admit(new, place)
        # Each round finds either the token or the session that has it, unless that ends in between.
        while True:
            try:
                return await self._admit(replace(new, continuation_token=token), place)
            except TokenTaken:
                assert self._places is not None
                if living := await self._places.living(new.tenant, token):
                    return living  # if it has ended just now, the token is free

    async def _admit(self, new: NewSession, place: r.QueuePlace | None) -> AdmissionReceipt:
        started = self._record(new, place)
        content = () if new.mode == RUN else content_of(new.message)
        # Apart from the record: logs are read by more people than may know it.
        secret = "".join(secrets_of(new.webhook.secret)) if new.webhook else ""
        secrets = {each.name: each.secret for each in new.outbox}
        delivery_id = self._clock.new_id("dlv")
        queued = r.DeliveryQueued(
            delivery_id=delivery_id, content=content, principal=new.sender, args=new.input
        )
        return await self._inbox.admit(
            Admission(
                tenant=started.tenant,
                session_id=new.session_id
                or self._clock.new_id("run" if new.mode == RUN else "ses"),
                lane=check_id("lane", new.lane),
                delivery_id=delivery_id,
                kind="message",
                records=(started, *([new.inherited] if new.inherited else ()), queued),
                at=self._inbox.store_clock.date(),
                dispatch_id=new.dispatch_id or delivery_id,
                scope=new.scope,
                fingerprint=new.fingerprint
                or (fingerprint(started, content, new.lane, new.input) if new.dispatch_id else ""),
                new=True,
                agent=started.agent,
                mode=started.mode,
                token=started.token,
                outbox=tuple(
                    with_secret(each, secrets.get(each.name, secret)) for each in started.outbox
                ),
                tags=started.tags,
            )
        )

    def _record(self, new: NewSession, place: r.QueuePlace | None) -> r.SessionStarted:
        hook = new.webhook or Webhook("")
        start = StartingSession(
            new.agent,
            url=new.webhook.url if new.webhook else None,
            events=hook.events,
            secret=hook.secret,
            token=new.continuation_token or "",
        )
        return r.SessionStarted(
            agent=new.agent,
            mode=new.mode,
            can_ask=can_ask(new.capabilities or {}),
            tenant=check_id("tenant", new.tenant),
            principal=check_who("principal", new.principal),
            token=new.continuation_token or self._clock.token(),
            deadline_at=instant_of(new.deadline, self._inbox.store_clock, new.dispatch_id),
            outbox=self._outbox(start, new.outbox),
            depth=new.depth,
            tags=check_tags(new.tags),
            starts_at=self._begin(new.delay),
            retry_of=new.retry_of,
            seed=new.seed,
            place=place,
            budget=new.budget.terms if new.budget else None,
        )

    def _outbox(
        self, start: StartingSession, of_old: tuple[r.NewOutboxCursor, ...]
    ) -> tuple[r.NewOutboxCursor, ...]:
        """Return the cursors of a start. Whoever tries a run again may not have its code."""
        found = self._cursors_of(start)
        names = {each.name for each in found}
        old = (replace(each, secret="") for each in of_old if each.name not in names)
        return (*found, *old)

    def _begin(self, delay: Span) -> int:
        """Return when a run begins; 0 is at once."""
        spell = milliseconds(delay)
        return self._inbox.store_clock.latest() + spell if spell > 0 else 0


def fingerprint(started: r.SessionStarted, content: Content, lane: str, given: str = "") -> str:
    """Return what tells a start from another with the same dispatch id."""
    # A deadline that is given as a span of time is another instant at each try, and what the
    # agent's code has subscribed to may be something else by then.
    asked = tuple(cursor for cursor in started.outbox if cursor.url)
    asked_for = replace(started, token="", deadline_at=0, starts_at=0, outbox=asked)
    # The same input is another text where a caller names its parts in another order.
    of_input = (args_digest(started.agent, given),) if given else ()
    return fingerprint_of(asked_for, content, lane, *of_input)


def check(new: NewSession) -> None:
    """Say what is wrong with a start before anything is looked up."""
    if new.mode not in get_args(StartMode) and not (new.mode == RUN and new.input):
        hint = ": a run is started with app.run" if new.mode == RUN else ""
        raise InvalidInput(f'mode is "conversation" or "task", not {new.mode!r}{hint}')
    check_dispatch(new.dispatch_id)
    checked_budget("budget", new.budget)
    if new.retry_failed:
        check_retry_failed(new.dispatch_id)
    if type(new.depth) is not int or not 0 <= new.depth <= MOST_ABOVE:
        raise InvalidInput(f"depth is a number of sessions above, 0 to {MOST_ABOVE}")
    if new.webhook is not None and not isinstance(new.webhook, Webhook):
        raise InvalidInput(f"webhook is a Webhook(url, …), not {new.webhook!r}")


def can_ask(capabilities: Mapping[str, bool]) -> bool:
    """Say whether a human can be asked in a session with these capabilities."""
    if not isinstance(capabilities, Mapping):
        raise InvalidInput('capabilities are a mapping: {"request_input": False}')
    unknown = set(capabilities) - {"request_input"}
    if unknown:
        raise InvalidInput(f"there is no capability {', '.join(sorted(map(str, unknown)))}")
    return bool(capabilities.get("request_input", True))
