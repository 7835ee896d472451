"""Retries and cancels of many turns over the wire, in pages."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from outlast.core.lane import OpenStatus, Wait
from outlast.server.model.delivery import Reason
from outlast.server.model.shape import INSTANT, Id, In, Out, example

A_CURSOR = "WyJzZXNfMDFLNVpKM004UTRWNlgyVDlSN0IxQzBENUYiLCJtYWluIl0"

Since = Annotated[
    Annotated[str, Field(max_length=64)] | None,
    Field(json_schema_extra={"format": "date-time"}, examples=[INSTANT]),
]
DryRun = Annotated[bool, Field(description="Only count what would be done.")]
PageCursor = Annotated[Id | None, Field(description="From where the last page ended.")]
PageLimit = Annotated[int, Field(ge=1, le=500, description="How many lanes at most are looked at.")]
NextCursor = Annotated[
    str | None,
    Field(description="Where the next page begins, if there may be one: `cursor` takes it."),
]


class BulkRetryIn(In):
    """Which failed turns to try again: all, or those that fit everything that is given."""

    model_config = example({"code": "MODEL_FAILED", "since": INSTANT})

    code: Id | None = Field(
        default=None, description="Those that failed with this code.", examples=["MODEL_FAILED"]
    )
    agent: Id | None = Field(default=None, description="Those of this agent.", examples=["support"])
    queue: Id | None = Field(
        default=None, description="Those of sessions in this queue.", examples=["reports"]
    )
    since: Since = Field(default=None, description="Those that failed at this instant or after it.")
    dry_run: DryRun = False
    cursor: PageCursor = None
    limit: PageLimit = 100


class BulkRetryOut(Out):
    """The outcome of retrying one page of failed turns."""

    model_config = example({"retried": 10, "left": 1, "next_cursor": None})

    retried: int = Field(description="How many are tried again, or would be.")
    left: int = Field(
        description="How many are not: no longer the last of their lane, queued already, or over."
    )
    next_cursor: NextCursor


class BulkCancelIn(In):
    """Which open turns and messages to stop: those that fit everything that is given, or `all`."""

    model_config = example({"agent": "support", "waiting": "provider"})

    agent: Id | None = Field(default=None, description="Those of this agent.", examples=["support"])
    status: OpenStatus | None = Field(default=None, description="Those whose lane is this.")
    waiting: Wait | None = Field(default=None, description="Those whose lane waits for this.")
    since: Since = Field(
        default=None, description="Those of sessions that were started at this instant or after it."
    )
    all: bool = Field(False, description="Has to be true where nothing else chooses.")
    reason: Reason = ""
    dry_run: DryRun = False
    cursor: PageCursor = None
    limit: PageLimit = 100

    @model_validator(mode="after")
    def chooses(self) -> Self:
        """Refuse a body that would stop everything without saying so."""
        chosen = (self.agent, self.status, self.waiting, self.since)
        if self.all == any(each is not None for each in chosen):
            raise ValueError("choose by agent, status, waiting or since; or say `all`: true")
        return self


class BulkCancelOut(Out):
    """The outcome of cancelling one page of open turns and messages."""

    model_config = example({"cancelled": 100, "left": 0, "next_cursor": A_CURSOR})

    cancelled: int = Field(description="How many are asked to stop, or would be.")
    left: int = Field(description="How many are not: asked before, or ended meanwhile.")
    next_cursor: NextCursor
