"""One retry per failed turn, however often it is asked for, and from wherever.

Owns what makes a retry safe to ask for again: its dispatch is named after the turn that failed.
Used by bulk retries (`bulk.py`) and by messages that are sent again with `retry_failed`
(`router.py`, `handle.py`). Whether a lane rests after a failed turn is what the store lists; the
lane's owner decides again when it takes the retry (`core/decide.py`).
"""

from collections.abc import Sequence
from typing import Protocol

from outlast.core import record as r
from outlast.errors import InvalidInput
from outlast.session.inbox import Inbox
from outlast.store import AdmissionReceipt, DeliveryInfo, LaneInfo, Store

RETRY = "0" * 32
"""The fingerprint of all retries: all who ask for a retry of a turn get the same one."""


class AcceptedMessage(Protocol):
    """The fields that a store's receipt and a user's receipt share."""

    @property
    def session_id(self) -> str: ...

    @property
    def lane(self) -> str: ...

    @property
    def delivery_id(self) -> str: ...

    @property
    def duplicate(self) -> bool: ...


def check_retry_failed(dispatch_id: str | None) -> None:
    """Refuse to retry a message that cannot have been sent before: it had no name."""
    if dispatch_id is None:
        raise InvalidInput(
            "retry_failed needs the dispatch_id of the message that failed: give that, too"
        )


def can_retry(lane: LaneInfo) -> bool:
    """Say whether a lane rests after a failed turn, and nothing is queued behind it."""
    return lane.failure is not None and bool(lane.failure.turn) and lane.status == "failed"


async def add_retry(store: Store, inbox: Inbox, lane: LaneInfo, principal: str) -> AdmissionReceipt:
    """Queue a retry of a lane's failed turn, unless one has been queued for it."""
    assert lane.failure is not None
    name = lane.failure.turn
    while True:
        # Named after the turn: of two that ask at once, one adds the retry.
        receipt = await inbox.add(
            lane.session_id,
            lane.tenant,
            lane.lane,
            r.DeliveryQueued(delivery_id="", kind="retry", principal=principal),
            scope=f"retry:{lane.session_id}",
            dispatch_id=name,
            fingerprint=RETRY,
        )
        if not receipt.duplicate or not await _was_withdrawn(store, receipt.delivery_id):
            return receipt
        name = receipt.delivery_id  # one that was cancelled in the queue has a successor


async def _was_withdrawn(store: Store, delivery_id: str) -> bool:
    found = await store.listing.delivery(delivery_id)
    return found is not None and found.outcome == "cancelled" and not found.turn


async def retry_if_failed(
    store: Store, inbox: Inbox, sent: AcceptedMessage, principal: str
) -> AdmissionReceipt | None:
    """Return the receipt of a message's newest retry; one is added if its turn has failed.

    None if it was never retried and cannot be: it did not fail, another turn came after it, or its
    session is over.
    """
    # Sent for the first time it has no turn that could have failed.
    first = await store.listing.delivery(sent.delivery_id) if sent.duplicate else None
    info = await store.listing.session(sent.session_id)
    if first is None or first.outcome != "failed" or not first.turn or info is None:
        return None  # without a turn it was its deadline that passed
    newest = newest_try(first, await store.listing.deliveries(sent.session_id))
    lane = next(each for each in info.lanes if each.lane == sent.lane)
    is_last = lane.failure is not None and lane.failure.turn == newest.turn
    if newest.outcome == "failed" and is_last and can_retry(lane) and not info.over:
        return await add_retry(store, inbox, lane, principal)
    return None if newest is first else receipt_of(newest)


def newest_try(first: DeliveryInfo, deliveries: Sequence[DeliveryInfo]) -> DeliveryInfo:
    """Return the last of a message and its retries: those that took the turns right after its own.

    A lane's deliveries take their turns in the order of their arrival.
    """
    newest = first
    for each in deliveries:
        is_next = each.lane == first.lane and each.offset > newest.offset
        if not is_next or each.turn == newest.turn or not takes_turn(each):
            continue
        # Another message's turn came in between: what failed before it is not retried any more.
        if each.kind != "retry":
            break
        newest = each
    return newest


def takes_turn(delivery: DeliveryInfo) -> bool:
    """Say whether a delivery has or will have a turn, its own or one that it joined."""
    is_out = delivery.state == "settled" and not delivery.turn
    return delivery.kind in ("message", "retry") and not is_out


def receipt_of(delivery: DeliveryInfo) -> AdmissionReceipt:
    """Return the receipt of a delivery that was accepted before."""
    return AdmissionReceipt(
        session_id=delivery.session_id,
        lane=delivery.lane,
        delivery_id=delivery.delivery_id,
        offset=delivery.offset,
        duplicate=True,
    )
