"""Promises to users and readers: nothing lost, in order, and seen as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from chaos.evidence import Evidence, Log
from outlast.core import record as r
from outlast.core.event import type_of


def every_receipt_is_in_the_log(evidence: Evidence) -> Iterator[str]:
    """What a user has a receipt for stands in the log, where the receipt says, once."""
    for receipt in evidence.accepted:
        log = evidence.logs.get(receipt.session, ())
        found = [
            place for place, delivery_id in arrivals(log) if delivery_id == receipt.delivery_id
        ]
        if found != [receipt.offset]:
            yield f"{receipt.session}: a {receipt.what}, {receipt.delivery_id}, is at {found}"


def every_delivery_is_settled_once(evidence: Evidence) -> Iterator[str]:
    for session, log in evidence.logs.items():
        settled = Counter(
            e.record.delivery_id for e in log if isinstance(e.record, r.DeliverySettled)
        )
        for _, delivery_id in arrivals(log):
            if settled[delivery_id] != 1:
                yield f"{session}: {delivery_id} was settled {settled[delivery_id]} times"


def arrivals(log: Log) -> list[tuple[int, str]]:
    return [
        (entry.offset, entry.record.delivery_id)
        for entry in log
        if isinstance(entry.record, r.DeliveryQueued | r.CancelRequested)
    ]


def turns_keep_the_order_of_arrival(evidence: Evidence) -> Iterator[str]:
    """Of the messages in a lane the one that came first is taken first."""
    for session, log in evidence.logs.items():
        waiting: dict[str, list[str]] = {}
        for entry in log:
            queue = waiting.setdefault(entry.lane, [])
            match entry.record:
                case r.DeliveryQueued(kind="message", delivery_id=delivery_id):
                    queue.append(delivery_id)
                case r.TurnStarted(delivery_id=d) | r.DeliverySettled(delivery_id=d) if d in queue:
                    if queue[0] != d:
                        yield f"{session}@{entry.offset}: {d} was taken before {queue[0]}"
                    queue.remove(d)


def readers_saw_the_log(evidence: Evidence) -> Iterator[str]:
    """Whoever read, however often they left, was given each event of the log once."""
    for reading in evidence.readings:
        given = [event.offset for event in reading.events]
        visible = [e.offset for e in evidence.logs[reading.session] if not type(e.record).internal]
        if given != visible:
            extra, missing = Counter(given) - Counter(visible), Counter(visible) - Counter(given)
            yield f"{reading.session}: read {dict(extra)} too much and {dict(missing)} too little"
        elif reading.events != evidence.events[reading.session]:
            yield f"{reading.session}: an event is not what it was when it was read"


def logs_grow(evidence: Evidence) -> Iterator[str]:
    """Offsets rise by one, and time never goes back."""
    for session, log in evidence.logs.items():
        for before, entry in pairwise(log):
            if entry.offset != before.offset + 1:
                yield f"{session}@{entry.offset} follows on {before.offset}"
            if entry.at < before.at:
                yield f"{session}@{entry.offset}: {type_of(entry.record)} went back in time"
