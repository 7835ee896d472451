"""Named queues: where a session stands in one, and `app.queues`, by which operators change them.

Owns what can be said of a queue and of a place in it, and how those that wait learn of a change.
What settings mean for a turn is in `core/queue.py`; turns wait in `engine/queue_gate.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from outlast.core.instant import Span, date_or_none, milliseconds
from outlast.core.name import check_id
from outlast.core.policy import SECOND
from outlast.core.queue import (
    MOST_AHEAD,
    NO_SETTINGS,
    QueueSettings,
    check_queue,
    line_of,
    most_under,
    queue_of,
    rate_of,
    singleton_token,
)
from outlast.core.record import QueuePlace
from outlast.core.setting import count_of, flag_of, seconds_of
from outlast.errors import InvalidDefinition, InvalidInput, UnknownQueue
from outlast.log.queue import find_queue, list_queues, put_queue, remove_queue
from outlast.store import AdmissionReceipt, LineInfo, Store


class QueueEntry(Struct, frozen=True):
    """The place of a session in a queue. What is left out is as the queue says.

    Attributes:
        name: The queue.
        key: The queue may limit how many turns of sessions with the same key run at once.
        priority: Seconds, 600 at most: the session counts as if it had asked so much earlier;
            later, if negative.
        delay: Time from the start until its first turn begins at the earliest.
    """

    name: str
    key: str = ""
    priority: int | None = None
    delay: Span | None = None


class QueueInfo(Struct, frozen=True, kw_only=True):
    """A queue: its `settings`, and how many turns hold a place in it and wait for one.

    The one that has waited for longest has done so since `oldest_at`.
    """

    name: str
    settings: QueueSettings
    running: int
    waiting: int
    oldest_at: datetime | None


class StartInQueue(Protocol):
    """What a start says of its place."""

    @property
    def agent(self) -> str: ...
    @property
    def queue(self) -> str | QueueEntry | None: ...
    @property
    def place(self) -> QueuePlace | None: ...
    @property
    def continuation_token(self) -> str | None: ...


def entry_at(place: QueuePlace | None) -> QueueEntry | None:
    """Return what a start has said to stand at a place; its delay is over."""
    if place is None:
        return None
    priority = None if place.ahead is None else place.ahead // SECOND
    return QueueEntry(place.queue, place.key, priority, 0)


class SessionPlaces:
    """The places that new sessions stand at; `queue_of` names the queue of an agent."""

    def __init__(self, store: Store, queue_of: Callable[[str], str]) -> None:
        self._store = store
        self._queue_of = queue_of

    async def find(self, new: StartInQueue) -> tuple[QueuePlace | None, str, int]:
        """Return the place of a new session, its token in a singleton, and its delay.

        A queue that a start names has to be known. One that an agent names may be set up later.
        """
        # A queue that was removed since does not keep a run from being tried again.
        said = new.queue or entry_at(new.place) or self._queue_of(new.agent)
        if not said:
            return None, "", 0
        entry = checked_entry(said)
        settings, _ = await find_queue(self._store, entry.name)
        if settings is None:
            if new.queue:
                raise unknown_queue(entry.name)
            settings = NO_SETTINGS
        ahead = None if entry.priority is None else entry.priority * SECOND
        place = QueuePlace(queue=entry.name, key=entry.key, ahead=ahead)
        delay = milliseconds(settings.delay if entry.delay is None else entry.delay)
        if not settings.singleton:
            return place, "", delay
        if new.continuation_token:
            raise InvalidInput(
                f"the queue {entry.name} is a singleton, and gives its sessions a token of their"
                " own: start it without a continuation_token"
            )
        return place, singleton_token(place), delay

    async def living(self, tenant: str, token: str) -> AdmissionReceipt | None:
        """Return the receipt of the first message of the living session that has a token."""
        found = await self._store.listing.find_token(tenant, token)
        first = (await self._store.listing.deliveries(found))[:1] if found else ()
        for each in first:
            return AdmissionReceipt(
                session_id=each.session_id,
                lane=each.lane,
                delivery_id=each.delivery_id,
                offset=each.offset,
                duplicate=True,
            )
        return None


class QueueControl:
    """The queues of the app's store: `app.queues`. A change holds at once, in all workers."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> Sequence[QueueInfo]:
        """List all queues by name."""
        lines = await self._store.limit.lines(line_of(""))
        known = await list_queues(self._store)
        return tuple(describe(name, known[name], lines) for name in sorted(known))

    async def get(self, name: str) -> QueueInfo:
        """Return one queue."""
        settings, _ = await find_queue(self._store, check_queue(name))
        if settings is None:
            raise unknown_queue(name)
        return describe(name, settings, await self._lines(name))

    async def set(
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
        """Change settings of a queue, or make it; what is left out stays as it is.

        See QueueSettings for what they mean. Turns that run go on; those that wait are held to the
        new settings at once.
        """
        given = {
            "concurrency": concurrency,
            "per_worker": per_worker,
            "per_key": per_key,
            "rate": rate,
            "per": per,
            "priority": priority,
            "delay": delay,
            "singleton": singleton,
        }
        return await change_queue(self._store, name, given)

    async def remove(self, name: str) -> None:
        """Remove the settings of a queue: its turns are no longer limited."""
        while True:
            before, version = await find_queue(self._store, check_queue(name))
            if before is None:
                raise unknown_queue(name)
            # By the version that was read: settings that somebody has changed meanwhile are looked
            # at first.
            if await remove_queue(self._store, name, before, version):
                await tell_waiting(self._store, name, before, NO_SETTINGS)
                return

    async def _lines(self, name: str) -> Sequence[LineInfo]:
        return await lines_of(self._store, name)


async def change_queue(store: Store, name: str, given: Mapping[str, Any]) -> QueueInfo:
    """Change those settings of a queue that are given, in the place of what they are now."""
    changes = checked_changes(given)
    while True:
        before, version = await find_queue(store, check_queue(name))
        after = replace(before or NO_SETTINGS, **changes)
        if after == before:
            break
        if await put_queue(store, name, after, version):
            # After the settings are written: who is woken asks by the new ones.
            await tell_waiting(store, name, before or NO_SETTINGS, after)
            break
    return describe(name, after, await lines_of(store, name))


async def tell_waiting(
    store: Store, name: str, before: QueueSettings, after: QueueSettings
) -> None:
    """Have turns that wait in a queue ask by its new settings, as far as that concerns them."""
    same_rate = rate_of(name, before) == rate_of(name, after)
    for line in await lines_of(store, name):
        most = most_under(line.name, after)
        is_rate = line.name.startswith(f"{line_of(name)}:rate:")
        # Those whose bound is the same are not woken for nothing.
        if not same_rate if is_rate else most != most_under(line.name, before):
            await store.limit.resize(line.name, most)


async def lines_of(store: Store, name: str) -> list[LineInfo]:
    """Return the lines of one queue, and of none whose name begins as its own does."""
    return [line for line in await store.limit.lines(line_of(name)) if queue_of(line.name) == name]


def describe(name: str, settings: QueueSettings, lines: Sequence[LineInfo]) -> QueueInfo:
    ours = [line for line in lines if queue_of(line.name) == name]
    return QueueInfo(
        name=name,
        settings=settings,
        running=sum(line.held for line in ours if line.name == line_of(name)),
        waiting=sum(line.waiting for line in ours),
        oldest_at=date_or_none(min((at for line in ours if (at := line.oldest_at)), default=None)),
    )


def unknown_queue(name: str) -> UnknownQueue:
    return UnknownQueue(
        f"there is no queue {name}: make it with `outlast queues set {name}`, or app.queues.set",
        queue=name,
    )


# What is given


def checked_entry(said: str | QueueEntry) -> QueueEntry:
    """Return a place in a queue, if it can be one."""
    entry = QueueEntry(said) if isinstance(said, str) else said
    if not isinstance(entry, QueueEntry):
        raise InvalidInput(f"queue is the name of a queue or a QueueEntry(name, …), not {said!r}")
    check_queue(entry.name)
    if entry.key != "":
        check_id("key", entry.key)
    if entry.priority is not None:
        check_priority(entry.priority)
    if entry.delay is not None:
        milliseconds(entry.delay)
    return entry


def check_priority(priority: Any) -> int:
    """Return how many seconds a session is ahead, if these are no more than may be."""
    is_whole = isinstance(priority, int) and not isinstance(priority, bool)
    if not is_whole or not -MOST_AHEAD <= priority <= MOST_AHEAD:
        raise InvalidInput(
            f"a priority is a whole number of seconds ahead, -{MOST_AHEAD} to {MOST_AHEAD}, so that"
            f" all get their turn; not {priority!r}"
        )
    return int(priority)


def checked_changes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that are given, if they can be."""
    found: dict[str, Any] = {}
    try:
        for name, value in given.items():
            if value is None:
                continue
            match name:
                case "priority":
                    found[name] = check_priority(value)
                case "singleton":
                    found[name] = flag_of(name, value)
                case "per" | "delay":
                    found[name] = seconds_of(name, value, or_none=name == "delay")
                case _:
                    found[name] = count_of(name, value, least=0)
    except InvalidDefinition as error:  # here it is no definition: somebody gave it just now
        raise InvalidInput(error.message) from None
    return found
