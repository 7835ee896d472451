"""Outlast: durable execution for AI agents."""

from importlib.metadata import version as _version
from typing import Any

from outlast.agents.agent import Agent
from outlast.agents.decision import Decision, ProposedCall
from outlast.agents.limit import Limit
from outlast.agents.options import Limits, ModelOptions
from outlast.agents.runtime.callback import Callback, ReceivedCallback
from outlast.agents.runtime.context import Answer, Context, InstructionContext
from outlast.agents.subscription import Subscription
from outlast.agents.tool import Approval, DedupeKey, NotDone, Tool, ToolResult, tool
from outlast.app import Outlast
from outlast.core.event import Event
from outlast.core.message import File, Image, Text
from outlast.core.record import Option
from outlast.engine.settings import WorkerSettings
from outlast.errors import OutlastError, Retry, ToolError
from outlast.integration.channel import Channel, SignedWebhookChannel
from outlast.integration.connection.connection import Connection
from outlast.integration.outbox.settings import WebhookSettings
from outlast.integration.schedule.schedule import Schedule
from outlast.integration.telemetry import Telemetry
from outlast.session import Receipt, Request, Result, Session
from outlast.session.inbox import QueueLimits
from outlast.session.router import Key, Token
from outlast.session.start import Webhook

__all__ = [
    "Agent",
    "Answer",
    "Approval",
    "Callback",
    "Channel",
    "Connection",
    "Context",
    "Decision",
    "DedupeKey",
    "Event",
    "File",
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
    "ProposedCall",
    "QueueLimits",
    "Receipt",
    "ReceivedCallback",
    "Request",
    "Result",
    "Retry",
    "Schedule",
    "Session",
    "SignedWebhookChannel",
    "Subscription",
    "Telemetry",
    "Text",
    "Token",
    "Tool",
    "ToolError",
    "ToolResult",
    "Webhook",
    "WebhookSettings",
    "WorkerSettings",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Look the version up when `__version__` is asked for: finding it takes a while."""
    if name != "__version__":
        raise AttributeError(f"module 'outlast' has no attribute {name!r}")
    return _version("outlast")
