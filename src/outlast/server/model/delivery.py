"""Deliveries to sessions, and their receipts."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from outlast.core.lane import StartMode
from outlast.core.name import MAIN
from outlast.server.model.budget import BudgetIn
from outlast.server.model.message import Message, said
from outlast.server.model.queue import QueueEntryIn
from outlast.server.model.request import RequestAnswerIn
from outlast.server.model.shape import (
    DELIVERY,
    REQUEST,
    SESSION,
    TOKEN,
    Id,
    In,
    Link,
    Out,
    example,
)
from outlast.session import Receipt
from outlast.session.inbox import deadline_of
from outlast.session.start import MOST_ABOVE, NewSession, Webhook

DispatchId = Annotated[
    Id | None,
    Field(
        description="The same id again, with the same content, does nothing new: safe to repeat.",
        examples=["req-1"],
    ),
]
RetryFailed = Annotated[
    bool,
    Field(description="Retry the turn of the message sent with this dispatch_id, if it failed."),
]
Lane = Annotated[Id, Field(description="The lane that it is for.", examples=["main"])]
Deadline = Annotated[
    Annotated[str, Field(max_length=64)] | None,
    Field(json_schema_extra={"format": "date-time"}, examples=["2099-01-31T12:00:00Z"]),
]
Tags = Annotated[
    dict[str, str] | None,
    Field(
        description="Texts to find the session by, if this starts it: at most 16, by name.",
        examples=[{"customer": "42"}],
    ),
]
Reason = Annotated[str, Field(max_length=1000, examples=["no longer needed"])]


class Capabilities(In):
    """The abilities of the session's user interface."""

    request_input: bool = Field(True, description="Whether somebody can be asked.")


class WebhookIn(In):
    """Where events of a session are posted."""

    url: Link = Field(examples=["https://example.com/outlast"])
    events: Annotated[list[Id], Field(max_length=100, fail_fast=True)] | None = Field(
        None, description="Types of events; if left out, those of turns and requests."
    )
    secret: str = Field(
        "",
        max_length=1024,
        description="Signs what is posted; if left out, the app's secret does.",
    )


class StartIn(In):
    """A session to start."""

    model_config = example({"agent": "support", "message": "Refund order 17"})

    agent: Id = Field(examples=["support"])
    message: Message
    mode: StartMode = "conversation"
    dispatch_id: DispatchId = None
    retry_failed: RetryFailed = False
    continuation_token: Id | None = Field(
        None, description="An address of your choice; random if left out."
    )
    lane: Lane = MAIN
    capabilities: Capabilities | None = None
    deadline: Deadline = Field(
        None, description="When the session ends by itself: an instant with its offset from UTC."
    )
    budget: BudgetIn | None = Field(
        None, description="What the session may use, with all that it starts."
    )
    webhook: WebhookIn | None = Field(None, description="Where its events are posted.")
    tags: Tags = None
    queue: QueueEntryIn | None = Field(None, description="The queue of its turns.")
    depth: int = Field(
        0, ge=0, le=MOST_ABOVE, description="How many sessions on other servers stand above it."
    )

    def new_session(self, *, tenant: str, principal: str) -> NewSession:
        """Return the start that this asks for, on behalf of who sent it."""
        hook = self.webhook
        return NewSession(
            agent=self.agent,
            message=said(self.message),
            mode=self.mode,
            dispatch_id=self.dispatch_id,
            retry_failed=self.retry_failed,
            continuation_token=self.continuation_token,
            lane=self.lane,
            tenant=tenant,
            principal=principal,
            capabilities=self.capabilities.model_dump() if self.capabilities else None,
            deadline=deadline_of(self.deadline),
            budget=self.budget.value() if self.budget else None,
            webhook=Webhook(hook.url, hook.events, hook.secret) if hook else None,
            depth=self.depth,
            tags=self.tags,
            queue=self.queue.value() if self.queue else None,
        )


class DeliverIn(In):
    """A message for wherever a continuation token leads."""

    model_config = example({"continuation_token": TOKEN, "message": "And order 18?"})

    continuation_token: Id
    message: Message
    agent: Id | None = Field(None, description="Start a session of this agent if there is none.")
    dispatch_id: DispatchId = None
    retry_failed: RetryFailed = False
    tags: Tags = None


class PromptIn(In):
    """A message for the one session of an agent and a key."""

    model_config = example({"message": "Good morning"})

    message: Message
    dispatch_id: DispatchId = None
    retry_failed: RetryFailed = False
    tags: Tags = None


class DeliveryIn(In):
    """A message for a session, or answers to some of its open requests."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [{"required": ["message"]}, {"required": ["answers"]}],
            "examples": [
                {"message": "And order 18?", "dispatch_id": "req-2"},
                {"answers": [{"request_id": REQUEST, "option": "approve"}]},
            ],
        }
    )

    message: Message = Field(default_factory=str)
    answers: Annotated[list[RequestAnswerIn], Field(fail_fast=True)] = Field(
        default_factory=list, min_length=1, max_length=100
    )
    dispatch_id: DispatchId = None
    retry_failed: RetryFailed = False
    lane: Lane = MAIN
    deadline: Deadline = Field(
        None, description="When the message's turn fails: an instant with its offset from UTC."
    )

    @model_validator(mode="after")
    def has_one(self) -> Self:
        if len(self.model_fields_set & {"message", "answers"}) != 1:
            raise ValueError("give exactly one of `message` and `answers`")
        if self.answers and self.deadline is not None:
            raise ValueError("answers have no `deadline`: leave it out")
        if self.answers and self.retry_failed:
            raise ValueError("`retry_failed` is for messages: leave it out of answers")
        if self.answers and self.lane != MAIN:
            raise ValueError("answers need no `lane`: leave it out, the request names it")
        return self


class CancelIn(In):
    """Stop the open turn of a lane; the session and its queue stay."""

    model_config = example({"reason": "no longer needed"})

    reason: Reason = ""
    turn: Id | None = Field(
        default=None, description="Stop only this turn, in its own lane.", examples=["t1"]
    )
    lane: Lane = MAIN


class EndIn(In):
    """End the session for good."""

    model_config = example({"reason": "solved"})

    reason: Reason = ""


class RetryIn(In):
    """Try a failed turn again from where it failed."""

    model_config = example({"lane": "main"})

    lane: Lane = MAIN


class CompactIn(In):
    """Shorten what the model is sent of a lane from here on."""

    model_config = example({"lane": "main", "dispatch_id": "compact-1"})

    lane: Lane = MAIN
    dispatch_id: DispatchId = None


class RewindIn(In):
    """Show the model the session as it was after a turn."""

    model_config = example({"to": "t3", "dispatch_id": "rewind-1"})

    to: Annotated[
        Id, Field(description="The last turn that the model still sees.", examples=["t3"])
    ]
    dispatch_id: DispatchId = None


class AnchorIn(In):
    """Have a session told in a thread of a channel from now on."""

    model_config = example({"channel": "desk", "thread": "room-7", "dispatch_id": "anchor-1"})

    channel: Annotated[Id, Field(description="A channel of the server's app.", examples=["desk"])]
    thread: Annotated[Id, Field(description="A thread of it.", examples=["room-7"])]
    dispatch_id: DispatchId = None


class ReceiptOut(Out):
    """Proof that something is durable in a session's queue."""

    model_config = example(
        {
            "session_id": SESSION,
            "delivery_id": DELIVERY,
            "lane": "main",
            "offset": 12,
            "position": 0,
            "duplicate": False,
        }
    )

    session_id: str
    delivery_id: str
    lane: str
    offset: int = Field(description="Where it stands in the log.")
    position: int = Field(description="How many are queued before it.")
    duplicate: bool = Field(description="Whether it had been sent before.")


class AnsweredOut(ReceiptOut):
    """A receipt; of several answers that for the first, and all of them in `deliveries`."""

    deliveries: list[ReceiptOut] | None = Field(None, description="One for each answer.")


class StartedOut(ReceiptOut):
    """A session that has been started, or had been before."""

    model_config = example(
        {
            "session_id": SESSION,
            "delivery_id": DELIVERY,
            "lane": "main",
            "offset": 2,
            "position": 0,
            "duplicate": False,
            "continuation_token": TOKEN,
            "stream_url": f"/v1/sessions/{SESSION}/stream",
        }
    )

    continuation_token: str
    stream_url: str


class PromptedOut(ReceiptOut):
    """A message that is in the queue of an agent's one session with a key."""

    model_config = example(
        {
            "session_id": SESSION,
            "delivery_id": DELIVERY,
            "lane": "main",
            "offset": 2,
            "position": 0,
            "duplicate": False,
            "stream_url": "/v1/agents/support/customer-17",
        }
    )

    stream_url: str


class AcceptedOut(Out):
    """It was accepted, and will be done."""

    model_config = example({"accepted": True})

    accepted: Literal[True] = True


def receipt_out(receipt: Receipt[Any]) -> dict[str, Any]:
    return {
        "session_id": receipt.session_id,
        "delivery_id": receipt.delivery_id,
        "lane": receipt.lane,
        "offset": receipt.offset,
        "position": receipt.position,
        "duplicate": receipt.duplicate,
    }
