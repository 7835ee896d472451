"""One run of one outbox cursor: deliver its events in order until something stops it.

Reads the log and calls the receiver. The result is in the fields of `OutboxDelivery`, which the
dispatcher settles in one write. A crash before that write repeats the events of this run and none
older.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing

from msgspec import Struct

from outlast.clock import Clock
from outlast.core.event import Cursor, Event
from outlast.core.instant import seconds
from outlast.errors import AddressRefused, InvalidUrl, Unreachable
from outlast.integration.outbox.consumer import Deliver, Receiver
from outlast.integration.outbox.settings import WebhookSettings
from outlast.log.reader import EventReader
from outlast.log_context import get_logger
from outlast.net.retry_after import retry_after
from outlast.store import DeadLetter, OutboxCursor, Store

log = get_logger("outlast.integration.outbox")

LONGEST_RUN = 10.0
"""Seconds after which a run begins no further event: other sessions wait, and holds expire."""

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 3600.0
MAX_DOUBLINGS = 20


class DeliveryFailure(Struct, frozen=True):
    """Why an event was not taken, and what its receiver wants done about it."""

    error: str
    pause: float = 0.0
    gone: bool = False


class OutboxDelivery:
    """Moves one cursor. After `run`, `again_at` is None if all events have been told."""

    def __init__(
        self,
        cursor: OutboxCursor,
        receiver: Receiver | None,
        settings: WebhookSettings,
        store: Store,
        clock: Clock,
    ) -> None:
        self.cursor = cursor
        self.position = cursor.position
        self.again_at: int | None = None
        self.tries = cursor.tries
        self.error = cursor.error
        self.dead: list[DeadLetter] = []
        self._receiver = receiver
        self._timeout = seconds(settings.timeout)
        self._give_up = int(seconds(settings.give_up) * 1000)
        self._store = store
        self._clock = clock
        self._deliver: Deliver | None = None

    async def run(self) -> None:
        """Deliver event after event, until one fails or the time is up."""
        began = self._clock.monotonic()
        async with AsyncExitStack() as stack, aclosing(self._events()) as events:
            async for event in events:
                if self._clock.monotonic() - began > LONGEST_RUN:
                    self.again_at = self._store.clock.earliest()
                    return
                failure = await self._try(event, stack)
                # The events of one cursor are told in their order: what is not taken holds up those
                # behind it.
                if failure and not self._gives_up(event, failure):
                    self._retry(event, failure)
                    return
                self.position, self.tries, self.error = event.offset, 0, ""
        self.again_at = None

    async def _events(self) -> AsyncGenerator[Event]:
        """Yield the events of the cursor's types, and pass over the others."""
        start = Cursor(self.position)
        reader = EventReader(self._store, self.cursor.session_id, start, internals=False)
        while True:
            events, before = await reader.next_page(), self.position
            for event in events:
                # A page's other events are passed over with the cursor, at no cost but the reading.
                if event.type in self.cursor.events:
                    yield event
            self.position = reader.cursor
            if self.position == before:
                return

    async def _try(self, event: Event, stack: AsyncExitStack) -> DeliveryFailure | None:
        """Deliver one event, and return why that failed, if it did."""
        if self._receiver is None:
            return DeliveryFailure(
                "this app's code has no subscription for this, or no secret for it"
            )
        limit = asyncio.timeout(self._timeout)
        try:
            # Opened with the first event, since most cursors that are due have one or none.
            if self._deliver is None:
                self._deliver = await stack.enter_async_context(self._receiver.open())
            async with limit:
                await self._deliver(event)
        except Unreachable as error:
            # By this machine's clock: a date in the header is of the receiver's, and there is no
            # other to compare.
            pause = retry_after(str(error.details.get("retry_after", "")), self._clock.now())
            return DeliveryFailure(error.message, pause, bool(error.details.get("gone")))
        except (AddressRefused, InvalidUrl) as error:
            return DeliveryFailure(error.message)
        except Exception as error:
            # `expired` tells our own limit from a TimeoutError of the receiver's code.
            if limit.expired():
                return DeliveryFailure(f"no answer within {self._timeout:g} s")
            log.exception("an event could not be told", extra={"cursor": self.cursor.name})
            return DeliveryFailure(f"raised {type(error).__name__}")
        return None

    def _gives_up(self, event: Event, failure: DeliveryFailure) -> bool:
        """Note an event as dead if its time is over, or its receiver is gone."""
        # By the event's own date, so that an outage of the dispatchers does not lengthen its life.
        if not failure.gone and self._store.clock.earliest() < self._dies_at(event):
            return False
        self.dead.append(
            DeadLetter(
                session_id=self.cursor.session_id,
                tenant=self.cursor.tenant,
                cursor_name=self.cursor.name,
                offset=event.offset,
                type=event.type,
                error=failure.error,
                at=self._store.clock.date(),
            )
        )
        self._log("an event is given up", event, failure)
        return True

    def _retry(self, event: Event, failure: DeliveryFailure) -> None:
        """Choose when to try again: later each time, and not before the receiver wants it.

        The last try is at the instant at which the event would be given up.
        """
        at = self._put_off(failure)
        self.again_at = min(at, max(self._dies_at(event), self._store.clock.latest() + 1))
        self._log("an event was not taken; it is told again", event, failure)

    def break_off(self, error: Exception) -> None:
        """Count a run that raised as a try: it is not begun again at once for ever."""
        self.again_at = self._put_off(DeliveryFailure(f"raised {type(error).__name__}"))

    def _put_off(self, failure: DeliveryFailure) -> int:
        """Count a try, and return when the next one is."""
        self.tries += 1
        self.error = failure.error
        doubled = FIRST_PAUSE * 2 ** min(self.tries - 1, MAX_DOUBLINGS)
        # Spread: thousands of cursors may have failed at the same receiver in the same second.
        pause = max(self._clock.jitter(min(doubled, LONGEST_PAUSE)), failure.pause)
        return self._store.clock.latest() + int(min(pause, LONGEST_PAUSE) * 1000)

    def _dies_at(self, event: Event) -> int:
        return int(event.at.timestamp() * 1000) + self._give_up

    def _log(self, phrase: str, event: Event, failure: DeliveryFailure) -> None:
        log.info(
            phrase,
            extra={
                "cursor": self.cursor.name,
                "offset": event.offset,
                "tries": self.tries,
                "error": failure.error,
            },
        )
