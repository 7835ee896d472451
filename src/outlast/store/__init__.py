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

from outlast.store.admission import WAIT_THEIR_TURN, Admission, AdmissionReceipt
from outlast.store.commit import Commit, Committed, EffectClaim, Refused, Snapshot, Transaction
from outlast.store.contract import Store
from outlast.store.key import KeyInfo
from outlast.store.limit import Permit, PermitInfo, PermitRequest
from outlast.store.listing import (
    DeliveryInfo,
    LaneCount,
    LaneInfo,
    RequestInfo,
    SessionInfo,
    StoreCounts,
)
from outlast.store.log import Loaded, LogPage
from outlast.store.outbox import DeadLetter, OutboxCursor
from outlast.store.schedule import ScheduleInfo
from outlast.store.vault import StoredSecret
from outlast.store.work import NO_LIMITS, Claim, Lease, Renewal, WorkerInfo

__all__ = [
    "NO_LIMITS",
    "WAIT_THEIR_TURN",
    "Admission",
    "AdmissionReceipt",
    "Claim",
    "Commit",
    "Committed",
    "DeadLetter",
    "DeliveryInfo",
    "EffectClaim",
    "KeyInfo",
    "LaneCount",
    "LaneInfo",
    "Lease",
    "Loaded",
    "LogPage",
    "OutboxCursor",
    "Permit",
    "PermitInfo",
    "PermitRequest",
    "Refused",
    "Renewal",
    "RequestInfo",
    "ScheduleInfo",
    "SessionInfo",
    "Snapshot",
    "Store",
    "StoreCounts",
    "StoredSecret",
    "Transaction",
    "WorkerInfo",
]
