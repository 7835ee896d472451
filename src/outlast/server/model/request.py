"""Requests to humans over the wire: what is open, and answers to it."""

from typing import Annotated, Any

from pydantic import Field

from outlast.server.model.shape import (
    INSTANT,
    REQUEST,
    SESSION,
    Id,
    In,
    Instant,
    Out,
    example,
    rfc3339_or_none,
)
from outlast.session import Request as Asked

A_REQUEST = {
    "request_id": REQUEST,
    "session_id": SESSION,
    "agent": "support",
    "kind": "approval",
    "prompt": "May refund be called?",
    "options": [{"id": "approve", "label": "Approve"}, {"id": "deny", "label": "Deny"}],
    "allow_freeform": True,
    "action": {"call_id": "t1.s1.c1", "tool": "refund", "args": {"order": 17, "cents": 500}},
    "digest": "0f6c0b7f3f2e4d5c8a9b1e2d3c4f5a6b",
    "expires_at": INSTANT,
    "path": [],
}


class OptionOut(Out):
    """One of the answers that a request offers."""

    id: str
    label: str


class ActionOut(Out):
    """The tool call that a request is about."""

    call_id: str
    tool: str
    args: Any


class RequestOut(Out):
    """A question to a human that is open."""

    model_config = example(A_REQUEST)

    request_id: str
    session_id: str
    agent: str
    kind: str = Field(description="approval, question, interrupted or budget")
    prompt: str
    options: list[OptionOut]
    allow_freeform: bool
    action: ActionOut | None
    digest: str
    expires_at: Instant | None
    path: list[str] = Field(description="Where a child asks: the sessions that lead to it.")


def request_out(asked: Asked, agent: str = "") -> RequestOut:
    action = None
    if asked.tool:
        action = ActionOut(call_id=asked.call_id, tool=asked.tool, args=asked.args)
    return RequestOut(
        request_id=asked.request_id,
        session_id=asked.session_id,
        agent=asked.agent or agent,
        kind=asked.kind,
        prompt=asked.prompt,
        options=[OptionOut(id=option.id, label=option.label) for option in asked.options],
        allow_freeform=asked.allow_freeform,
        action=action,
        digest=asked.digest,
        expires_at=rfc3339_or_none(asked.expires_at),
        path=list(asked.path),
    )


class RequestPage(Out):
    """Open requests, oldest first."""

    model_config = example({"requests": [A_REQUEST], "next_cursor": None})

    requests: list[RequestOut]
    next_cursor: str | None = Field(description="Where the next page begins, if there is one.")


OptionId = Annotated[str, Field(max_length=10_000)]
"""Options may be named by their text, which whoever asked has written."""


class AnswerIn(In):
    """An answer: one of the request's options, a text, or both."""

    model_config = example({"option": "approve"})

    option: OptionId | None = Field(None, examples=["approve"])
    text: str | None = Field(None, examples=["up to 20 euros is fine"])
    args: dict[str, Any] | None = Field(
        None, description="The arguments to use instead, with `approve`."
    )
    dispatch_id: Id | None = Field(None, description="The same id again answers nothing.")


class RequestAnswerIn(In):
    """An answer to one of a session's requests."""

    model_config = example({"request_id": REQUEST, "option": "approve"})

    request_id: Id
    option: OptionId | None = None
    text: str | None = None
    args: dict[str, Any] | None = None
