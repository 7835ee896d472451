"""Outlast: durable execution for AI agents."""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from outlast.agents.agent import Agent
from outlast.agents.budget import Budget
from outlast.agents.context.policy import ContextPolicy
from outlast.agents.decision import Decision, ProposedCall
from outlast.agents.limit import Limit
from outlast.agents.options import Limits, ModelOptions
from outlast.agents.runtime.branch import FirstResult
from outlast.agents.runtime.callback import Callback, ReceivedCallback
from outlast.agents.runtime.context import Answer, Context, InstructionContext, SessionContext
from outlast.agents.runtime.step import NotDone
from outlast.agents.runtime.subagent_call import Subagent
from outlast.agents.subagent import AskableAgent
from outlast.agents.subscription import Subscription
from outlast.agents.tool import Approval, DedupeKey, Tool, ToolResult, ask_question, tool
from outlast.app import Outlast
from outlast.core.event import Event
from outlast.core.message import File, Image, Text
from outlast.core.record import Option
from outlast.engine.settings import WorkerSettings
from outlast.errors import OutlastError, Retry, ToolError
from outlast.integration.channel import Channel, SignedWebhookChannel
from outlast.integration.connection.connection import Connection, ConnectionSettings
from outlast.integration.outbox.settings import WebhookSettings
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.telemetry import Telemetry
from outlast.session import Receipt, Request, Result, Session, WaitingFor
from outlast.session.inbox import QueueLimits
from outlast.session.queue import QueueEntry
from outlast.session.router import Key, Token
from outlast.session.run import Run, RunInfo, RunResult, RunStatus
from outlast.session.run_list import RunSummary
from outlast.session.start import Webhook
from outlast.workflows.context import WorkflowContext
from outlast.workflows.workflow import Workflow, workflow

if TYPE_CHECKING:
    from outlast.client import Client, RemoteSession
    from outlast.integration.remote.agent import RemoteAgent
    from outlast.server import Principal, ServerSettings

__all__ = [
    "Agent",
    "Answer",
    "Approval",
    "AskableAgent",
    "Budget",
    "Callback",
    "Channel",
    "Client",
    "Connection",
    "ConnectionSettings",
    "Context",
    "ContextPolicy",
    "Decision",
    "DedupeKey",
    "Event",
    "File",
    "FirstResult",
    "Image",
    "InstructionContext",
    "Key",
    "Limit",
    "Limits",
    "ModelOptions",
    "NotDone",
    "Option",
    "Outlast",
    "OutlastError",
    "Principal",
    "ProposedCall",
    "QueueEntry",
    "QueueLimits",
    "Receipt",
    "ReceivedCallback",
    "RemoteAgent",
    "RemoteSession",
    "Request",
    "Result",
    "Retry",
    "Run",
    "RunInfo",
    "RunResult",
    "RunStatus",
    "RunSummary",
    "Schedule",
    "ServerSettings",
    "Session",
    "SessionContext",
    "SignedWebhookChannel",
    "Subagent",
    "Subscription",
    "Telemetry",
    "Text",
    "Token",
    "Tool",
    "ToolError",
    "ToolResult",
    "WaitingFor",
    "Webhook",
    "WebhookSettings",
    "WorkerSettings",
    "Workflow",
    "WorkflowContext",
    "ask_question",
    "tool",
    "workflow",
]


_LATE = {
    "Client": "outlast.client",
    "Principal": "outlast.server",
    "RemoteAgent": "outlast.integration.remote.agent",
    "RemoteSession": "outlast.client",
    "ServerSettings": "outlast.server",
}
"""Names whose modules are imported when they are asked for: an app without HTTP needs no httpx."""


def __getattr__(name: str) -> Any:
    """Import what is in `_LATE`, and look up `__version__`, which takes a while, when asked."""
    if name == "__version__":
        return _version("outlast")
    if name not in _LATE:
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    return getattr(_import_module(_LATE[name]), name)
