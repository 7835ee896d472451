"""A session as its users hold it: send, answer, read, wait.

Only reads and admits; the work is done by workers, here or anywhere else.
"""

from outlast.core.lane import SessionMode, Status
from outlast.core.queue import QueueSettings
from outlast.session.bulk import BulkCancel, BulkControl, BulkRetry, LanePlace
from outlast.session.callback import Callbacks
from outlast.session.code_check import CodeFinding
from outlast.session.deployment import DeploymentControl
from outlast.session.handle import Receipt, Session
from outlast.session.listing import WorkerControl
from outlast.session.mutation import SessionChanges, SliceChanges
from outlast.session.observation import Observation
from outlast.session.provider import ProviderControl, ProviderOutage
from outlast.session.queue import QueueControl, QueueInfo
from outlast.session.request import Request, RequestKind, request_of
from outlast.session.result import Result, ResultStatus
from outlast.session.run import RunKind, RunStatus
from outlast.session.run_history import RunStep
from outlast.session.state import SliceQuery
from outlast.session.waiting import AT_REST, WaitingFor, WaitKind, is_at_rest, needs_somebody

__all__ = [
    "AT_REST",
    "BulkCancel",
    "BulkControl",
    "BulkRetry",
    "Callbacks",
    "CodeFinding",
    "DeploymentControl",
    "LanePlace",
    "Observation",
    "ProviderControl",
    "ProviderOutage",
    "QueueControl",
    "QueueInfo",
    "QueueSettings",
    "Receipt",
    "Request",
    "RequestKind",
    "Result",
    "ResultStatus",
    "RunKind",
    "RunStatus",
    "RunStep",
    "Session",
    "SessionChanges",
    "SessionMode",
    "SliceChanges",
    "SliceQuery",
    "Status",
    "WaitKind",
    "WaitingFor",
    "WorkerControl",
    "is_at_rest",
    "needs_somebody",
    "request_of",
]
