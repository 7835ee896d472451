"""The contract between Outlast and a database, in sentences.

A store keeps the logs of sessions and the indexes beside them, lets one worker at a
time own a lane, and never shows what it could still take back. Every method is
atomic: it happens whole or not at all, and when it has returned, it has happened.
`outlast.testing.StoreContract` holds any implementation to these sentences.

The contract has eight topics, each a module with a protocol and the structs that go in and come
out: `log`, `work`, `listing`, `limit`, `outbox`, `document`, `usage`, `budget`. `contract.py`
joins them to a `Store`; `outlast.stores` has the implementations.

Instants are milliseconds since the epoch, by the store's clock; `clock.py` says which clock each
date comes from. An arrival is an entry that was not written by a
lane's owner: the session's start, a delivery, a cancel.
"""

from outlast.core.amount import BudgetChange, BudgetKey, BudgetState, BudgetTerms
from outlast.core.index import ClosedRequest, DeliveryChange, Index, LaneFailure, OpenedRequest
from outlast.core.limit import Bound
from outlast.core.record import Entry, NewOutboxCursor
from outlast.core.usage import UsageChange, UsageRow
from outlast.store.admission import WAIT_THEIR_TURN, Admission, AdmissionReceipt
from outlast.store.budget import BudgetInfo, BudgetMismatch, BudgetStore, BudgetUse
from outlast.store.clock import StoreClock
from outlast.store.commit import Commit, Committed, EffectClaim, FoldSnapshot, Refused, Transaction
from outlast.store.contract import Store
from outlast.store.document import Document, DocumentStore
from outlast.store.limit import LimitStore, LineInfo, Permit, PermitInfo, PermitRequest
from outlast.store.listing import (
    DeliveryInfo,
    FailureFilter,
    FailureInfo,
    LaneCount,
    LaneInfo,
    ListingStore,
    OpenFilter,
    OpenLane,
    RequestInfo,
    SessionInfo,
    StoreCounts,
)
from outlast.store.log import Loaded, LogPage, LogStore
from outlast.store.outbox import DeadLetter, OutboxCursor, OutboxStore
from outlast.store.usage import UsageFilter, UsageKey, UsageLine, UsageStore
from outlast.store.work import (
    ANYONE,
    NO_LIMITS,
    NO_PIN,
    Claim,
    DeploymentInfo,
    Lease,
    Pin,
    Renewal,
    TakeoverEvidence,
    Unfinished,
    WorkerInfo,
    WorkStore,
)

__all__ = [
    "ANYONE",
    "NO_LIMITS",
    "NO_PIN",
    "WAIT_THEIR_TURN",
    "Admission",
    "AdmissionReceipt",
    "Bound",
    "BudgetChange",
    "BudgetInfo",
    "BudgetKey",
    "BudgetMismatch",
    "BudgetState",
    "BudgetStore",
    "BudgetTerms",
    "BudgetUse",
    "Claim",
    "ClosedRequest",
    "Commit",
    "Committed",
    "DeadLetter",
    "DeliveryChange",
    "DeliveryInfo",
    "DeploymentInfo",
    "Document",
    "DocumentStore",
    "EffectClaim",
    "Entry",
    "FailureFilter",
    "FailureInfo",
    "FoldSnapshot",
    "Index",
    "LaneCount",
    "LaneFailure",
    "LaneInfo",
    "Lease",
    "LimitStore",
    "LineInfo",
    "ListingStore",
    "Loaded",
    "LogPage",
    "LogStore",
    "NewOutboxCursor",
    "OpenFilter",
    "OpenLane",
    "OpenedRequest",
    "OutboxCursor",
    "OutboxStore",
    "Permit",
    "PermitInfo",
    "PermitRequest",
    "Pin",
    "Refused",
    "Renewal",
    "RequestInfo",
    "SessionInfo",
    "Store",
    "StoreClock",
    "StoreCounts",
    "TakeoverEvidence",
    "Transaction",
    "Unfinished",
    "UsageChange",
    "UsageFilter",
    "UsageKey",
    "UsageLine",
    "UsageRow",
    "UsageStore",
    "WorkStore",
    "WorkerInfo",
]
