"""What Outlast asks of a database, in sentences.

A store keeps the logs of sessions and the indexes beside them, lets one worker at a
time own a lane, and never shows what it could still take back. Every method is
atomic: it happens whole or not at all, and what it returned has happened.
`outlast.testing.StoreContract` holds any implementation to these sentences.

Each module is a topic: what goes in, what comes out, and what is promised about it.
`contract.py` joins them to a `Store`.

Instants are milliseconds since the epoch. An arrival is an entry that somebody other
than a lane's owner added: the session's start, a delivery, a cancel.
"""

from outlast.store.admission import WAIT_THEIR_TURN, Admission, Receipt
from outlast.store.commit import Commit, Committed, Effect, Refused, Snapshot, Transaction
from outlast.store.contract import Store
from outlast.store.key import KeyInfo
from outlast.store.limit import Permit, PermitInfo, Wish
from outlast.store.listing import (
    Census,
    DeliveryInfo,
    LaneCount,
    LaneInfo,
    RequestInfo,
    SessionInfo,
)
from outlast.store.log import Loaded, Page
from outlast.store.outbox import DeadLetter, Outlet
from outlast.store.schedule import ScheduleInfo
from outlast.store.vault import Secret
from outlast.store.work import NO_LIMITS, Claim, Lease, Renewal, WorkerInfo

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
