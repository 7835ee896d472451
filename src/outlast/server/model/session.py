"""Sessions over the wire: how they stand, and what their turns came to."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict
from pydantic import Field

from outlast.core.instant import rfc3339
from outlast.core.lane import SessionEnd, SessionMode, Status
from outlast.core.record import Failure, UsageSum
from outlast.core.usage import TreeUsage
from outlast.server.model.request import RequestOut, request_out
from outlast.server.model.shape import (
    INSTANT,
    SESSION,
    TOKEN,
    Instant,
    Out,
    example,
    rfc3339_or_none,
)
from outlast.session import Result, WaitingFor
from outlast.session.result import ResultStatus
from outlast.session.waiting import WaitKind
from outlast.store import FailureInfo, LaneInfo, SessionInfo

A_SUM = {
    "input_tokens": 812,
    "output_tokens": 97,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "model_calls": 2,
    "unpriced_calls": 0,
    "nano_usd": 2779000,
    "usd": "0.002779",
}
USAGE = {"own": A_SUM, "total": A_SUM}
AN_ITEM = {
    "session_id": SESSION,
    "agent": "support",
    "mode": "conversation",
    "status": "idle",
    "created_at": INSTANT,
    "updated_at": INSTANT,
    "offset": 12,
    "over": None,
    "tags": {"customer": "42"},
    "failure": None,
    "lanes": [
        {
            "lane": "main",
            "status": "idle",
            "turn": None,
            "queued": 0,
            "failure": None,
            "wait": ["message"],
        }
    ],
    "lane_count": 1,
}
STATUS = (
    "running, queued, waiting (for somebody), sleeping (goes on by itself), idle, failed (rests "
    "after a failed turn, which can be retried); or how it ended: completed, failed, ended"
)


A_WAIT = {
    "kind": "provider",
    "session_id": SESSION,
    "agent": "support",
    "lane": "main",
    "since": INSTANT,
    "next_try_at": INSTANT,
    "error": {
        "code": "CREDENTIALS_REJECTED",
        "message": "the provider answered 401: invalid key",
        "hint": "give the workers a key that may use openai:gpt-5.2: OPENAI_API_KEY, unless the app"
        " gives it another",
    },
    "blocked": True,
}


class LaneFailureOut(Out):
    """The failure of a lane's last turn, until the next one begins."""

    code: str = Field(examples=["PROVIDER_UNAVAILABLE"])
    message: str = Field(description="At most 500 characters of it.")
    since: Instant
    turn: str | None = Field(description="The turn that can be retried, unless the session failed.")


class SessionLaneOut(Out):
    """A lane of a session."""

    lane: str
    status: Status
    turn: str | None = Field(description="The turn that is open.")
    queued: int = Field(description="How many messages wait in it.")
    failure: LaneFailureOut | None = Field(description="Why its last turn failed, if it did.")
    wait: list[str] = Field(description="What it rests for: the words are those of `waits`.")


class SessionItem(Out):
    """A session as it is listed."""

    model_config = example(AN_ITEM)

    session_id: str
    agent: str
    mode: SessionMode
    status: Status = Field(description=STATUS)
    created_at: Instant
    updated_at: Instant
    offset: int = Field(description="The log's last offset.")
    over: SessionEnd | None = Field(description="How it ended, if it has.")
    tags: dict[str, str] = Field(description="What it was started with, to be found by.")
    failure: LaneFailureOut | None = Field(
        description="Why its last turn failed: of several lanes, the newest failure."
    )
    lanes: list[SessionLaneOut] = Field(description="At most 100 of them: GET /v1/lanes has all.")
    lane_count: int = Field(description="How many lanes it has.")


class SessionPage(Out):
    """Sessions, newest first."""

    model_config = example({"sessions": [AN_ITEM], "next_cursor": None})

    sessions: list[SessionItem]
    next_cursor: str | None = Field(description="Where the next page begins, if there is one.")


class LaneWait(Out):
    """A wait of a lane."""

    lane: str
    status: Status
    wait: list[str] = Field(
        description="message, request, authorization, children, callback, timer, provider, limit"
        " or retry",
        examples=[["request"]],
    )
    since: Instant | None
    until: Instant | None = Field(description="When it goes on by itself.")


class FailureOut(Out):
    """Why something did not succeed."""

    code: str
    message: str
    hint: str = Field(description="What to do about it, if that is known; or empty.")


class WaitingForOut(Out):
    """The wait of a session: its own, or that of a child which it waits for."""

    model_config = example(A_WAIT)

    kind: WaitKind = Field(
        description="provider, request, authorization, limit, key, callback, timer, children; or"
        " worker: one that takes it up"
    )
    session_id: str = Field(description="Whose wait it is: the session, or a child of it.")
    agent: str
    lane: str
    since: Instant | None = Field(description="For a provider: since its first failure.")
    next_try_at: Instant | None = Field(
        description="When the provider is asked again, or the wait goes on by itself."
    )
    error: FailureOut | None = Field(description="The provider's last failure.")
    blocked: bool = Field(description="Whether it does not pass by itself: somebody has to mend it")


class UsageSumOut(Out):
    """The usage of model calls, added up."""

    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    model_calls: int
    unpriced_calls: int = Field(description="Of these, calls whose price is not known.")
    nano_usd: int = Field(description="What the others cost, in billionths of a US dollar.")
    usd: str = Field(description="The same in US dollars.", examples=["0.002779"])


class UsageOut(Out):
    """Its own usage, and the total of it and all that it has started."""

    own: UsageSumOut
    total: UsageSumOut


class SessionOut(SessionItem):
    """A session, what it waits for and what it has cost."""

    model_config = example(
        {
            **AN_ITEM,
            "next_lane": None,
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
            "waiting_for": None,
            "requests": [],
            "usage": USAGE,
            "lineage": [],
            "deadline": None,
        }
    )

    next_lane: str | None = Field(
        description="Where the next page of lanes begins, if there is one: `lanes_after` takes it."
        " `waits` and `deadline` are those of the lanes on this page."
    )
    continuation_token: str | None = Field(description="Only for who may send.")
    waits: list[LaneWait]
    waiting_for: WaitingForOut | None = Field(
        description="What the turn that is open waits for, or the message that is next; of several"
        " things the one that is told first. None: it is at work, or waits for a message."
    )
    requests: list[RequestOut]
    usage: UsageOut
    lineage: list[str] = Field(description="The sessions that this one comes from, nearest first.")
    deadline: Instant | None


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
            "waiting_for": None,
            "budget_exhausted": None,
        }
    )

    status: ResultStatus = Field(
        description="completed, waiting (for a human), failed, cancelled, ended, idle; or running"
    )
    output: Any
    requests: list[RequestOut]
    error: FailureOut | None
    usage: UsageOut
    turn: str | None
    waiting_for: WaitingForOut | None = Field(
        description="What a session that is waiting or running waits for, unless it is at work."
    )
    budget_exhausted: str | None = Field(
        None, description="The budget at whose end the turn handed back what it had."
    )


def item_fields(info: SessionInfo, lanes: Sequence[LaneInfo] | None = None) -> dict[str, Any]:
    """Return a session as it is listed, with its first lanes or those that are given."""
    shown = info.lanes if lanes is None else lanes
    return {
        "session_id": info.session_id,
        "agent": info.agent,
        "mode": info.mode,
        "status": info.status,
        "created_at": rfc3339(info.created_at),
        "updated_at": rfc3339(info.updated_at),
        "offset": info.end,
        "over": info.over or None,
        "tags": info.tags,
        "failure": lane_failure_out(info.failure),
        "lanes": [
            SessionLaneOut(
                lane=lane.lane,
                status=lane.status,
                turn=lane.turn or None,
                queued=lane.queued,
                failure=lane_failure_out(lane.failure),
                wait=list(lane.wait),
            )
            for lane in shown
        ],
        "lane_count": info.lane_count,
    }


def lane_failure_out(failure: FailureInfo | None) -> LaneFailureOut | None:
    if failure is None:
        return None
    return LaneFailureOut(
        code=failure.code,
        message=failure.message,
        since=rfc3339(failure.since),
        turn=failure.turn or None,
    )


def usage_out(usage: TreeUsage) -> UsageOut:
    return UsageOut(own=sum_out(usage.own), total=sum_out(usage.total))


def sum_out(used: UsageSum) -> UsageSumOut:
    return UsageSumOut(**asdict(used), usd=f"{used.usd.normalize():f}")


def result_out(result: Result[Any], output: Any, agent: str) -> ResultOut:
    return ResultOut(
        status=result.status,
        output=output,
        requests=[request_out(request, agent) for request in result.requests],
        error=failure_out(result.error) if result.error else None,
        usage=usage_out(result.usage),
        turn=result.turn or None,
        waiting_for=waiting_out(result.waiting_for),
        budget_exhausted=result.budget_exhausted or None,
    )


def failure_out(error: Failure) -> FailureOut:
    return FailureOut(code=error.code, message=error.message, hint=error.hint)


def waiting_out(wait: WaitingFor | None) -> WaitingForOut | None:
    if wait is None:
        return None
    return WaitingForOut(
        kind=wait.kind,
        session_id=wait.session_id,
        agent=wait.agent,
        lane=wait.lane,
        since=rfc3339_or_none(wait.since),
        next_try_at=rfc3339_or_none(wait.next_try_at),
        error=failure_out(wait.error) if wait.error else None,
        blocked=wait.blocked,
    )
