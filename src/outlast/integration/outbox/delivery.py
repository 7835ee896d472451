"""One visit to an outbox cursor: what it has to tell, in order, until something stops it.

Posts and reads; what became of it lies in the visit's fields, for the courier to settle in
one write. A crash before that write repeats what this visit has posted, and nothing older.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from msgspec import Struct

from outlast.clock import Clock
from outlast.core.event import Event
from outlast.errors import AddressRefused, InvalidUrl, Unreachable
from outlast.integration.outbox.payload import letter, letter_id
from outlast.integration.outbox.route import Observe, OutboxRoutes, WebhookTarget
from outlast.log.reader import EventReader
from outlast.log_context import get_logger
from outlast.net.client import GuardedClient, HttpAnswer, ReceiverConnection
from outlast.net.signature import sign
from outlast.store import DeadLetter, OutboxCursor, Store

log = get_logger("outlast.integration.outbox")

VISIT = 10.0
"""Seconds after which a visit begins nothing more: other sessions wait, and holds end."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 3600.0
GONE = 410
MOST_DOUBLINGS = 20
JSON = {"content-type": "application/json", "user-agent": "outlast-webhook"}


class DeliveryFailure(Struct, frozen=True):
    """Why an event was not taken, and what the receiver wants us to do about it."""

    error: str
    pause: float = 0.0
    gone: bool = False


class OutboxDelivery:
    """Takes one outbox cursor forward. After `run`, `again_at` is None if all is told."""

    def __init__(
        self,
        cursor: OutboxCursor,
        store: Store,
        clock: Clock,
        outbound: GuardedClient,
        book: OutboxRoutes,
    ) -> None:
        self.cursor = cursor
        self.position = cursor.position
        self.again_at: int | None = None
        self.tries = cursor.tries
        self.error = cursor.error
        self.dead: list[DeadLetter] = []
        self._store = store
        self._clock = clock
        self._outbound = outbound
        self._book = book
        self._give_up = int(book.settings.give_up * 1000)
        self._line: ReceiverConnection | None = None

    async def run(self) -> None:
        """Post event after event, until one fails or the time is up."""
        began = self._clock.monotonic()
        async with AsyncExitStack() as stack, aclosing(self._events()) as events:
            async for event in events:
                if self._clock.monotonic() - began > VISIT:
                    self.again_at = self._clock.now()
                    return
                failure = await self._post(event, stack)
                if failure and not self._gives_up(event, failure):
                    self._try_again(event, failure)
                    return
                self.position, self.tries, self.error = event.offset, 0, ""
        self.again_at = None

    async def _events(self) -> AsyncGenerator[Event]:
        """Give the events that were chosen, and pass over the others."""
        reader = EventReader(self._store, self.cursor.session_id, self.position, internals=False)
        while True:
            events, before = await reader.next_page(), self.position
            for event in events:
                if event.type in self.cursor.events:
                    yield event
            self.position = reader.cursor
            if self.position == before:
                return

    async def _post(self, event: Event, stack: AsyncExitStack) -> DeliveryFailure | None:
        if hook := self._book.hook(self.cursor):
            return await self._observe(hook, event)
        addressee = self._book.find(self.cursor)
        if addressee is None:
            return DeliveryFailure(
                "nobody in this app's code has subscribed to this, or it has no secret"
            )
        wraps = self._book.wraps_output(self.cursor.agent)
        body = await letter(self._store, self.cursor, event, wraps_output=wraps)
        try:
            if self._line is None:
                self._line = await stack.enter_async_context(self._outbound.open(addressee.url))
            return self._judge(await self._line.post(body, self._headers(addressee, event, body)))
        except (AddressRefused, InvalidUrl, Unreachable) as error:
            return DeliveryFailure(error.message)

    async def _observe(self, hook: Observe, event: Event) -> DeliveryFailure | None:
        """Tell a function or a channel of the app; what it raises has it told again."""
        try:
            async with asyncio.timeout(self._book.settings.timeout):
                await hook(event)
        except Unreachable as error:
            pause = pause_of(str(error.details.get("retry_after", "")), self._clock.now())
            return DeliveryFailure(error.message, pause, bool(error.details.get("gone")))
        except (AddressRefused, InvalidUrl) as error:
            return DeliveryFailure(error.message)
        except Exception as error:
            log.exception("an observer failed", extra={"cursor": self.cursor.name})
            return DeliveryFailure(f"raised {type(error).__name__}")
        return None

    def _headers(self, addressee: WebhookTarget, event: Event, body: bytes) -> dict[str, str]:
        at = self._clock.now() // 1000
        return JSON | sign(addressee.secrets, body, at, letter_id(self.cursor, event))

    def _judge(self, answer: HttpAnswer) -> DeliveryFailure | None:
        """Say what an answer means: only 2xx says that the event was taken."""
        if 200 <= answer.status < 300:
            return None
        if 300 <= answer.status < 400:
            return DeliveryFailure(f"{answer.status}: redirects are not followed")
        pause = pause_of(answer.headers.get("retry-after", ""), self._clock.now())
        return DeliveryFailure(f"answered {answer.status}", pause, answer.status == GONE)

    def _gives_up(self, event: Event, failure: DeliveryFailure) -> bool:
        """Note an event as dead if its time is over, or its receiver is gone."""
        if not failure.gone and self._clock.now() < self._dies_at(event):
            return False
        self.dead.append(
            DeadLetter(
                session_id=self.cursor.session_id,
                tenant=self.cursor.tenant,
                cursor_name=self.cursor.name,
                offset=event.offset,
                type=event.type,
                error=failure.error,
                at=self._clock.now(),
            )
        )
        self._say("a webhook is given up", event, failure)
        return True

    def _try_again(self, event: Event, failure: DeliveryFailure) -> None:
        """Choose when: later each time, when the receiver says, and once more at the very end."""
        self.tries += 1
        self.error = failure.error
        doubled = FIRST_PAUSE * 2 ** min(self.tries - 1, MOST_DOUBLINGS)
        pause = max(self._clock.jitter(min(doubled, LONGEST_PAUSE)), failure.pause)
        at = self._clock.now() + int(min(pause, LONGEST_PAUSE) * 1000)
        self.again_at = min(at, max(self._dies_at(event), self._clock.now() + 1))
        self._say("a webhook failed; it is tried again", event, failure)

    def _dies_at(self, event: Event) -> int:
        return int(event.at.timestamp() * 1000) + self._give_up

    def _say(self, phrase: str, event: Event, failure: DeliveryFailure) -> None:
        log.info(
            phrase,
            extra={
                "cursor": self.cursor.name,
                "offset": event.offset,
                "tries": self.tries,
                "error": failure.error,
            },
        )


def pause_of(retry_after: str, now: int) -> float:
    """Return the seconds that a receiver wants to be left alone; 0 if it says nothing of use."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.fromtimestamp(now / 1000, UTC)).total_seconds())
