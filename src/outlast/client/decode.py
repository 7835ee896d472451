"""Turns the server's answers into the types that an app in this process returns.

Fields that are not known here are left out, so a client can read a newer server. An answer that is
no Outlast server's is an error that says so. The other direction is `encode.py`; answers that are
errors are read in `error.py`.
"""

from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from outlast.agents.runtime.json_value import from_json
from outlast.core.event import INSTANTS, JSON_FIELDS, Event
from outlast.core.message import Message
from outlast.core.record import Failure, Option
from outlast.core.usage import TreeUsage
from outlast.errors import InvalidInput, InvalidServerAnswer, ServerUnavailable, StoreCorrupt
from outlast.log.milestone import Milestone
from outlast.session import Request, Result, WaitingFor
from outlast.session.request import RequestKind
from outlast.session.result import ResultStatus
from outlast.session.waiting import WaitKind

T = TypeVar("T")

RUNNING = "running"


def decode(raw: bytes, kind: type[T]) -> T:
    """Return an answer as a value of a type, or say that no Outlast server answers like this."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.MsgspecError as error:
        raise unreadable(error) from None
    except RecursionError:
        raise InvalidServerAnswer("the server's answer is nested too deep to be read") from None


def unreadable(error: Exception) -> ServerUnavailable:
    return ServerUnavailable(
        f"the server's answer cannot be read ({error}): is the address right, and the server "
        "of the same release as this client?"
    )


def event_of(line: bytes, session_id: str) -> Event:
    """Return a line of a session's stream as the event that a reader would get without a wire."""
    event = replace(decode(line, Event), session_id=session_id)
    data = cast(dict[str, Any], event.data)
    for name, value in data.items():
        if isinstance(value, list) and name not in JSON_FIELDS:
            data[name] = tuple(value)  # a record's own; in what a tool or a model gave, lists stay
    for name in INSTANTS & data.keys():
        data[name] = instant(data[name])
    return event


def instant(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise unreadable(error) from None


class WireReceipt(Struct):
    """A receipt, and of a session's first delivery its continuation token, too."""

    session_id: str
    delivery_id: str
    lane: str
    offset: int
    position: int = 0
    duplicate: bool = False
    continuation_token: str | None = None


class WireAction(Struct):
    call_id: str
    tool: str
    args: Any


class WireRequest(Struct):
    request_id: str
    session_id: str
    kind: RequestKind
    prompt: str
    options: tuple[Option, ...]
    allow_freeform: bool
    action: WireAction | None = None
    digest: str = ""
    expires_at: datetime | None = None
    path: tuple[str, ...] = ()
    agent: str = ""

    def value(self) -> Request:
        action = self.action or WireAction("", "", None)
        return Request(
            request_id=self.request_id,
            kind=self.kind,
            prompt=self.prompt,
            options=self.options,
            allow_freeform=self.allow_freeform,
            session_id=self.session_id,
            tool=action.tool,
            call_id=action.call_id,
            args=action.args,
            digest=self.digest,
            expires_at=self.expires_at,
            path=self.path,
            agent=self.agent,
        )


class WireMilestones(Struct):
    milestones: tuple[Milestone, ...]
    next_cursor: str | None = None


class WireWait(Struct):
    kind: WaitKind
    session_id: str
    agent: str
    lane: str
    since: datetime | None = None
    next_try_at: datetime | None = None
    error: Failure | None = None
    blocked: bool = False

    def value(self) -> WaitingFor:
        return WaitingFor(**asdict(self))


class WireResult(Struct):
    status: str
    output: Raw = Raw(b"null")
    requests: tuple[WireRequest, ...] = ()
    error: Failure | None = None
    usage: TreeUsage = TreeUsage()
    turn: str | None = None
    waiting_for: WireWait | None = None
    budget_exhausted: str | None = None

    def value(self, output_type: Any) -> Result[Any]:
        return Result(
            status=cast("ResultStatus", self.status),
            output=self._typed(output_type) if self.status == "completed" else None,
            requests=tuple(request.value() for request in self.requests),
            error=self.error,
            usage=self.usage,
            turn=self.turn or "",
            waiting_for=self.waiting_for.value() if self.waiting_for else None,
            budget_exhausted=self.budget_exhausted or "",
        )

    def _typed(self, output_type: Any) -> Any:
        text = bytes(self.output).decode()
        try:
            return from_json(text, Any if output_type is None else output_type)
        except StoreCorrupt as error:
            name = getattr(output_type, "__name__", output_type) or "value"
            raise InvalidInput(f"the output is no {name}: {error.__cause__}") from None


class WireHistory(Struct):
    """A page of a conversation."""

    messages: list[Message]
    next_cursor: str | None = None
