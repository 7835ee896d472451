"""Sessions over the wire: how they stand, and what their turns came to."""

from typing import Any

from pydantic import Field

from outlast.core.record import Tokens
from outlast.server.model.request import RequestOut, request_out
from outlast.server.model.shape import (
    INSTANT,
    SESSION,
    TOKEN,
    Instant,
    Out,
    example,
    instant,
)
from outlast.session import Result
from outlast.store import SessionInfo

USAGE = {
    "input_tokens": 812,
    "output_tokens": 97,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
}
AN_ITEM = {
    "session_id": SESSION,
    "agent": "support",
    "mode": "conversation",
    "status": "idle",
    "created_at": INSTANT,
    "updated_at": INSTANT,
    "offset": 12,
    "over": None,
    "lanes": [{"lane": "main", "status": "idle", "turn": None, "queued": 0}],
}
STATUS = (
    "running, queued, waiting (for somebody), sleeping (goes on by itself), idle; "
    "or how it ended: completed, failed, ended"
)


class SessionLaneOut(Out):
    """A lane of a session."""

    lane: str
    status: str
    turn: str | None = Field(description="The turn that is open.")
    queued: int = Field(description="How many messages wait in it.")


class SessionItem(Out):
    """A session as it is listed."""

    model_config = example(AN_ITEM)

    session_id: str
    agent: str
    mode: str
    status: str = Field(description=STATUS)
    created_at: Instant
    updated_at: Instant
    offset: int = Field(description="The log's last offset.")
    over: str | None = Field(description="How it ended, if it has.")
    lanes: list[SessionLaneOut]


class SessionPage(Out):
    """Sessions, newest first."""

    model_config = example({"sessions": [AN_ITEM], "next_cursor": None})

    sessions: list[SessionItem]
    next_cursor: str | None = Field(description="Where the next page begins, if there is one.")


class LaneWait(Out):
    """A wait of a lane."""

    lane: str
    status: str
    wait: list[str] = Field(
        description="message, request, authorization, children, callback, timer, provider or limit",
        examples=[["request"]],
    )
    since: Instant | None
    until: Instant | None = Field(description="When it goes on by itself.")


class UsageOut(Out):
    """The usage of model calls."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int


class SessionOut(SessionItem):
    """A session, what it waits for and what it has cost."""

    model_config = example(
        {
            **AN_ITEM,
            "continuation_token": TOKEN,
            "waits": [
                {
                    "lane": "main",
                    "status": "idle",
                    "wait": ["message"],
                    "since": INSTANT,
                    "until": None,
                }
            ],
            "requests": [],
            "usage": USAGE,
            "lineage": [],
            "deadline": None,
        }
    )

    continuation_token: str | None = Field(description="Only for who may send.")
    waits: list[LaneWait]
    requests: list[RequestOut]
    usage: UsageOut
    lineage: list[str] = Field(description="The sessions that this one comes from, nearest first.")
    deadline: Instant | None


class FailureOut(Out):
    """Why a turn did not succeed."""

    code: str
    message: str


class ResultOut(Out):
    """The result of a turn."""

    model_config = example(
        {
            "status": "completed",
            "output": "I gave back 5 euros.",
            "requests": [],
            "error": None,
            "usage": USAGE,
            "turn": "t1",
        }
    )

    status: str = Field(
        description="completed, waiting (for a human), failed, cancelled, ended, idle; or running"
    )
    output: Any
    requests: list[RequestOut]
    error: FailureOut | None
    usage: UsageOut
    turn: str | None


def item_fields(info: SessionInfo) -> dict[str, Any]:
    return {
        "session_id": info.session_id,
        "agent": info.agent,
        "mode": info.mode,
        "status": info.status,
        "created_at": instant(info.created_at),
        "updated_at": instant(info.updated_at),
        "offset": info.end,
        "over": info.over or None,
        "lanes": [
            SessionLaneOut(
                lane=lane.lane, status=lane.status, turn=lane.turn or None, queued=lane.queued
            )
            for lane in info.lanes
        ],
    }


def usage_out(tokens: Tokens) -> UsageOut:
    return UsageOut(**{name: getattr(tokens, name) for name in Tokens.__struct_fields__})


def result_out(result: Result[Any], output: Any, agent: str) -> ResultOut:
    error = result.error
    return ResultOut(
        status=result.status,
        output=output,
        requests=[request_out(request, agent) for request in result.requests],
        error=FailureOut(code=error.code, message=error.message) if error else None,
        usage=usage_out(result.usage),
        turn=result.turn or None,
    )


def still_running() -> ResultOut:
    """Return the result of a turn that has not ended yet."""
    return ResultOut(
        status="running", output=None, requests=[], error=None, usage=usage_out(Tokens()), turn=None
    )
