"""Queues: named sets of limits on turns, with an order among those that wait.

Owns what a session says of its place in one, what a queue's settings are, and which limits a turn
is under by them. Refuses to know where settings are kept (`log/queue.py`), how places are granted
(the store's topic `limit`) and who asks for them (`engine/queue_gate.py`).
"""

import re
from typing import Any

from msgspec import Struct

from outlast.core.limit import Bound
from outlast.core.name import OF_QUEUE, check_id, quoted, storable_key
from outlast.core.policy import SECOND
from outlast.core.record import QueuePlace
from outlast.errors import InvalidName

MOST_AHEAD = 600
"""How many seconds ahead or behind a session may be: one that has waited for twice as long longer
than another is never overtaken by it, so that all get their turn."""
ANY_NUMBER = 2**31 - 1
"""Stands for no bound: those that run are counted all the same, in case a bound is set later."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}")


class QueueSettings(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The settings of a queue; 0 is any number.

    Attributes:
        concurrency: Turns that run at once, in the fleet.
        per_worker: Turns that run at once in each worker.
        per_key: Turns that run at once of a tenant's sessions with the same key.
        rate: Turns that begin in `per` seconds; all may begin at once.
        per: The period of `rate`.
        priority: Seconds by which its sessions count as if they had asked earlier.
        delay: Seconds from a session's start until its first turn begins at the earliest.
        singleton: A tenant has one living session per key: another start returns it.
    """

    concurrency: int = 0
    per_worker: int = 0
    per_key: int = 0
    rate: int = 0
    per: float = 60.0
    priority: int = 0
    delay: float = 0.0
    singleton: bool = False


NO_SETTINGS = QueueSettings()


def line_of(queue: str) -> str:
    """Return the name of the limit under which all turns of a queue are counted."""
    return OF_QUEUE + queue


def queue_of(line: str) -> str:
    """Return the queue that a limit belongs to; empty if it is no queue's."""
    return line.removeprefix(OF_QUEUE).partition(":")[0] if line.startswith(OF_QUEUE) else ""


def places_of(place: QueuePlace, settings: QueueSettings, tenant: str) -> tuple[Bound, ...]:
    """Return what a turn needs places under while it runs.

    The key comes first: a turn that waits for its key's turn would else keep others out.
    """
    line = line_of(place.queue)
    everybody = Bound(line, concurrency=settings.concurrency or ANY_NUMBER)
    if not place.key:
        return (everybody,)
    # The tenant cannot pass for a part of the key, nor the other way about.
    key = storable_key(f"{quoted(tenant)}:{place.key}")
    return (Bound(f"{line}:key:{key}", concurrency=settings.per_key or ANY_NUMBER), everybody)


def places_here(queue: str, settings: QueueSettings, worker: str) -> tuple[Bound, ...]:
    """Return what a turn needs a place under in the worker that runs it."""
    if not settings.per_worker:
        return ()
    return (Bound(f"{line_of(queue)}:worker:{worker}", concurrency=settings.per_worker),)


def rate_of(queue: str, settings: QueueSettings) -> tuple[Bound, ...]:
    """Return the rate at which turns begin. Another rate is another limit, paid for anew."""
    if not settings.rate:
        return ()
    per = int(settings.per * SECOND)
    return (Bound(f"{line_of(queue)}:rate:{settings.rate}/{per}", rate=settings.rate, per=per),)


def most_under(line: str, settings: QueueSettings) -> int:
    """Return how many may hold a place in one of a queue's lines; in that of a rate any number."""
    kind = line.removeprefix(OF_QUEUE).partition(":")[2].partition(":")[0]
    most = {"": settings.concurrency, "key": settings.per_key, "worker": settings.per_worker}
    return most.get(kind, 0) or ANY_NUMBER


def ahead_of(place: QueuePlace, settings: QueueSettings) -> int:
    """Return by how many milliseconds a session is ahead of its time."""
    # What the session said at its start stays; else the queue's word of now.
    return settings.priority * SECOND if place.ahead is None else place.ahead


def singleton_token(place: QueuePlace) -> str:
    """Return the token of the one living session with a key in a singleton."""
    return storable_key(f"{line_of(place.queue)}:{place.key}")


def check_queue(name: Any) -> str:
    """Return the name of a queue, if it can be one."""
    checked = check_id("queue", name)
    if not _NAME.fullmatch(checked):
        raise InvalidName(
            "the name of a queue is of 1 to 64 letters, digits and -._ and begins with one of the"
            f" first two, not {name!r}"
        )
    return checked
