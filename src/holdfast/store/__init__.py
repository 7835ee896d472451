"""What Holdfast asks of a database, in sentences.

A store keeps the logs of sessions and the indexes beside them, lets one worker at a
time own a lane, and never shows what it could still take back. Every method is
atomic: it happens whole or not at all, and what it returned has happened.
`holdfast.testing.StoreContract` holds any implementation to these sentences.

Each module is a topic: what goes in, what comes out, and what is promised about it.
`contract.py` joins them to a `Store`.

Instants are milliseconds since the epoch. An arrival is an entry that somebody other
than a lane's owner added: the session's start, a delivery, a cancel.
"""

from holdfast.store.admission import WAIT_THEIR_TURN, Admission, Receipt
from holdfast.store.commit import Commit, Committed, Effect, Refused, Snapshot, Transaction
from holdfast.store.contract import Store
from holdfast.store.key import KeyInfo
from holdfast.store.listing import (
    Census,
    DeliveryInfo,
    LaneCount,
    LaneInfo,
    RequestInfo,
    SessionInfo,
)
from holdfast.store.outlet import DeadLetter, Outlet
from holdfast.store.ownership import NO_LIMITS, Claim, Lease, Renewal, WorkerInfo
from holdfast.store.permit import Permit, PermitInfo, Wish
from holdfast.store.reading import Loaded, Page
from holdfast.store.schedule import ScheduleInfo
from holdfast.store.vault import Secret

__all__ = [
    "NO_LIMITS",
    "WAIT_THEIR_TURN",
    "Admission",
    "Census",
    "Claim",
    "Commit",
    "Committed",
    "DeadLetter",
    "DeliveryInfo",
    "Effect",
    "KeyInfo",
    "LaneCount",
    "LaneInfo",
    "Lease",
    "Loaded",
    "Outlet",
    "Page",
    "Permit",
    "PermitInfo",
    "Receipt",
    "Refused",
    "Renewal",
    "RequestInfo",
    "ScheduleInfo",
    "Secret",
    "SessionInfo",
    "Snapshot",
    "Store",
    "Transaction",
    "Wish",
    "WorkerInfo",
]
