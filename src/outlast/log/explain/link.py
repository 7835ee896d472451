"""The parts of an explanation: causes, lane by lane.

Owns their fields. The causes are found by the modules beside this one, one for each kind of them.
"""

from datetime import datetime
from typing import Literal

from msgspec import Struct

from outlast.core.lane import Status
from outlast.core.record import Failure

CauseKind = Literal[
    "over",
    "turn",
    "usage",
    "owner",
    "takeover",
    "worker",
    "cancel",
    "answer",
    "model",
    "provider",
    "tool",
    "request",
    "callback",
    "authorization",
    "child",
    "timer",
    "retry",
    "completion",
    "milestone",
    "context",
    "permit",
    "budget",
    "key",
    "code",
    "deployment",
    "event",
    "queue",
    "outbox",
    "message",
    "failure",
    "deaths",
]


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cause, in a sentence without its instants, with the ids that it is about."""

    kind: CauseKind
    text: str
    since: datetime | None = None
    until: datetime | None = None
    turn: str = ""
    step: int = 0
    call: str = ""
    attempt: int = 0
    request: str = ""
    delivery: str = ""
    worker: str = ""
    fence: int = 0


class LaneExplanation(Struct, frozen=True, kw_only=True):
    """A lane, and why it stands where it does: what comes first leads to what comes after."""

    lane: str
    status: Status
    links: tuple[Cause, ...]


class Explanation(Struct, frozen=True, kw_only=True):
    """A session, lane by lane. `at` is when it was looked at."""

    session_id: str
    agent: str
    status: Status
    at: datetime
    lanes: tuple[LaneExplanation, ...]


def sentence(error: Failure) -> str:
    return f"{error.code}: {error.message}"
