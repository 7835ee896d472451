"""Holdfast: durable execution for AI agents."""

from importlib.metadata import version as _version
from typing import Any

from holdfast.agents.agent import Agent
from holdfast.agents.context import Answer, Context
from holdfast.agents.decision import Decision, Proposed
from holdfast.agents.limit import Limit
from holdfast.agents.outside import Callback, Webhook
from holdfast.agents.tool import NotDone, Tool, ToolResult, tool
from holdfast.app import Holdfast
from holdfast.connection.connection import Connection
from holdfast.core.event import Event
from holdfast.core.message import File, Image, Text
from holdfast.core.record import Option
from holdfast.engine.settings import WorkerSettings
from holdfast.errors import HoldfastError, Retry, ToolError
from holdfast.schedule.schedule import Schedule
from holdfast.session import Receipt, Request, Result, Session
from holdfast.telemetry import Telemetry

__all__ = [
    "Agent",
    "Answer",
    "Callback",
    "Connection",
    "Context",
    "Decision",
    "Event",
    "File",
    "Holdfast",
    "HoldfastError",
    "Image",
    "Limit",
    "NotDone",
    "Option",
    "Proposed",
    "Receipt",
    "Request",
    "Result",
    "Retry",
    "Schedule",
    "Session",
    "Telemetry",
    "Text",
    "Tool",
    "ToolError",
    "ToolResult",
    "Webhook",
    "WorkerSettings",
    "tool",
]


def __getattr__(name: str) -> Any:
    """Look the version up when somebody asks for `__version__`: it has to be searched for."""
    if name != "__version__":
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return _version("holdfast")
