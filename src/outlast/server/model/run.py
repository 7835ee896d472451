"""Runs of workflows: how one is started, how it is listed, and its record."""

from typing import Annotated, Any

from pydantic import Field

from outlast.core.instant import rfc3339
from outlast.server.model.delivery import Capabilities, Deadline, DispatchId, Reason, WebhookIn
from outlast.server.model.queue import QueueEntryIn
from outlast.server.model.request import RequestOut, request_out
from outlast.server.model.session import (
    USAGE,
    FailureOut,
    UsageOut,
    WaitingForOut,
    failure_out,
    usage_out,
    waiting_out,
)
from outlast.server.model.shape import INSTANT, Id, In, Instant, Out, example, rfc3339_or_none
from outlast.session.run import RunInfo, RunResult, RunStatus
from outlast.session.run_history import RunStep, StepStatus
from outlast.session.run_list import RunSummary

RUN = "run_01K5ZJ3M8Q4V6X2T9R7B1C0D5F"
LONGEST_DELAY = 10 * 365 * 86_400.0
"""Seconds: ten years."""

Tags = Annotated[
    dict[str, str] | None,
    Field(
        description="Texts to find the run by: at most 16, by name.",
        examples=[{"customer": "42"}],
    ),
]


class RunIn(In):
    """A run to start; `input` is what its workflow takes."""

    model_config = example({"input": {"month": "2026-01"}, "dispatch_id": "report-2026-01"})

    input: Any = None
    dispatch_id: DispatchId = None
    delay: float = Field(
        0, ge=0, le=LONGEST_DELAY, description="Seconds until it begins.", examples=[60]
    )
    deadline: Deadline = Field(
        None, description="When the run errors: an instant with its offset from UTC."
    )
    tags: Tags = None
    capabilities: Capabilities | None = None
    webhook: WebhookIn | None = Field(None, description="Where its events are posted.")
    queue: QueueEntryIn | None = Field(None, description="The queue that it waits in.")


class RunResultOut(Out):
    """The result of a run so far."""

    model_config = example(
        {
            "status": "completed",
            "output": {"total": 17},
            "error": None,
            "requests": [],
            "usage": USAGE,
            "waiting_for": None,
        }
    )

    status: RunStatus
    output: Any
    error: FailureOut | None
    requests: list[RequestOut]
    usage: UsageOut
    waiting_for: WaitingForOut | None


class RunStartedOut(Out):
    """A run that has been started, or had been before."""

    model_config = example(
        {"run_id": RUN, "stream_url": f"/v1/runs/{RUN}", "duplicate": False, "result": None}
    )

    run_id: str
    stream_url: str
    duplicate: bool = Field(description="Whether it had been started before.")
    result: RunResultOut | None = Field(description="With `wait=result`.")


class RunItem(Out):
    """A run as it is listed."""

    run_id: str
    workflow: str
    status: RunStatus
    tags: dict[str, str]
    created_at: Instant
    updated_at: Instant


class RunPage(Out):
    """Some runs, newest first."""

    model_config = example(
        {
            "runs": [
                {
                    "run_id": RUN,
                    "workflow": "report",
                    "status": "completed",
                    "tags": {"customer": "42"},
                    "created_at": INSTANT,
                    "updated_at": INSTANT,
                }
            ],
            "next_cursor": None,
        }
    )

    runs: list[RunItem]
    next_cursor: str | None


class RunOut(RunItem):
    """The record of a run: its input, status, output and times."""

    model_config = example(
        {
            "run_id": RUN,
            "workflow": "report",
            "status": "completed",
            "tags": {},
            "created_at": INSTANT,
            "updated_at": INSTANT,
            "input": {"month": "2026-01"},
            "output": {"total": 17},
            "error": None,
            "retry_of": None,
            "started_at": INSTANT,
            "ended_at": INSTANT,
        }
    )

    input: Any
    output: Any
    error: FailureOut | None
    retry_of: str | None = Field(description="The run that this one tries again.")
    started_at: Instant | None = Field(description="When a worker took it up.")
    ended_at: Instant | None


class RunCancelIn(In):
    """Stop a run; what it has done is undone as its body said."""

    model_config = example({"reason": "no longer needed"})

    reason: Reason = ""


class RunRetryIn(In):
    """Try a run again that has errored or was cancelled."""

    model_config = example({"dispatch_id": "again-1"})

    dispatch_id: DispatchId = None


class RunEventIn(In):
    """An event for a run."""

    model_config = example({"name": "paid", "payload": {"cents": 500}})

    name: Id
    payload: Any = None
    dispatch_id: DispatchId = None


class RunStepOut(Out):
    """A step of a run, known by its `name`."""

    name: str
    status: StepStatus
    attempt: int
    value: Any
    error: FailureOut | None
    started_at: Instant | None = Field(
        description="null if the start is not recorded, because the step may be done again."
    )
    ended_at: Instant | None
    cursor: str = Field(description="From where a page goes on that ended with this step.")


class RunStepsOut(Out):
    """Some steps of a run, in the order in which they began."""

    model_config = example(
        {
            "steps": [
                {
                    "name": "total",
                    "status": "completed",
                    "attempt": 1,
                    "value": 17,
                    "error": None,
                    "started_at": INSTANT,
                    "ended_at": INSTANT,
                    "cursor": "9-8",
                }
            ],
            "next_cursor": None,
        }
    )

    steps: list[RunStepOut]
    next_cursor: str | None


def run_step_out(step: RunStep) -> RunStepOut:
    return RunStepOut(
        name=step.name,
        status=step.status,
        attempt=step.attempt,
        value=step.value,
        error=failure_out(step.error) if step.error else None,
        started_at=rfc3339_or_none(step.started_at),
        ended_at=rfc3339_or_none(step.ended_at),
        cursor=step.cursor,
    )


def run_item(run: RunSummary) -> RunItem:
    return RunItem(**fields(run))


def run_out(run: RunInfo) -> RunOut:
    return RunOut(
        **fields(run),
        input=run.input,
        output=run.output,
        error=failure_out(run.error) if run.error else None,
        retry_of=run.retry_of or None,
        started_at=rfc3339_or_none(run.started_at),
        ended_at=rfc3339_or_none(run.ended_at),
    )


def fields(run: RunInfo | RunSummary) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "workflow": run.workflow,
        "status": run.status,
        "tags": dict(run.tags),
        "created_at": rfc3339(run.created_at),
        "updated_at": rfc3339(run.updated_at),
    }


def run_result_out(found: RunResult[Any], output: Any, workflow: str) -> RunResultOut:
    return RunResultOut(
        status=found.status,
        output=output,
        error=failure_out(found.error) if found.error else None,
        requests=[request_out(request, workflow) for request in found.requests],
        usage=usage_out(found.usage),
        waiting_for=waiting_out(found.waiting_for),
    )
