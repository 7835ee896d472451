"""A session's state over the wire: as it is, and changes of it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from outlast.server.model.delivery import DispatchId
from outlast.server.model.shape import INSTANT, SESSION, Id, In, Instant, Out, example

MOST_VALUES, MOST_SLICES = 10_000, 1_000


class SnapshotOut(Out):
    """All that a session keeps, and what it is known by."""

    model_config = example(
        {
            "format": 1,
            "session_id": SESSION,
            "created_at": INSTANT,
            "taken_at": INSTANT,
            "offset": 42,
            "tags": {},
            "parent": None,
            "children": [],
            "slices": {"todo": {"values": [{"value": {"id": 1, "text": "tea"}, "version": 1}]}},
        }
    )

    format: int
    session_id: str
    created_at: Instant
    taken_at: Instant
    offset: int = Field(description="The last record of the log that it has seen.")
    tags: dict[str, str]
    parent: str | None
    children: list[str]
    slices: dict[str, Any] = Field(description="By name: `values`, and `log` where it is one.")


class SliceValueIn(In):
    """A value of a slice, and the version of its schema that it is written in."""

    value: Any = Field(examples=[{"id": 1, "text": "tea"}])
    version: int = Field(1, ge=1, le=2**31)


class SliceIn(In):
    """A slice as a snapshot has it."""

    values: Annotated[list[SliceValueIn], Field(max_length=MOST_VALUES, fail_fast=True)] = Field([])
    log: bool = False


class StateChangeIn(In):
    """What is to become of a slice, or of all that a session keeps."""

    model_config = example(
        {"op": "append", "slice": "todo", "values": [{"value": {"id": 1, "text": "tea"}}]}
    )

    op: Literal["seed", "append", "dispatch", "reset", "rollback"] = Field(
        description="`seed` keeps these values and no others, `append` one more; `dispatch` gives"
        " an event to reducers; `reset` keeps nothing; `rollback` goes back to a snapshot."
    )
    slice: Id | None = Field(None, description="The slice; an event may be for all that take it.")
    event: Id | None = Field(None, description="The class of the event that is dispatched.")
    values: Annotated[list[SliceValueIn], Field(max_length=MOST_VALUES, fail_fast=True)] = Field(
        [], description="The values of a slice, or the one event."
    )
    slices: Annotated[dict[Id, SliceIn], Field(max_length=MOST_SLICES)] | None = Field(
        None, description="For `rollback`: the `slices` that `GET …/state` gave."
    )
    dispatch_id: DispatchId = None
