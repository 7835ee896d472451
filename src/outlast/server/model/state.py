"""Changes of a session's state, as they are asked for over HTTP."""

from typing import Annotated, Any, Literal

from pydantic import Field

from outlast.server.model.delivery import DispatchId
from outlast.server.model.shape import Id, In, example

MOST_VALUES, MOST_SLICES = 10_000, 1_000


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
