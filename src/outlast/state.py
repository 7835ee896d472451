"""Typed session state: slice types, reducers and snapshots.

Only names these for users; docs/how-to/state.md explains them.
"""

from outlast.agents.state.mutation import SessionMutation, SliceMutation
from outlast.agents.state.reducer import (
    Reducer,
    append,
    replace_latest,
    replace_latest_by,
    upsert_by,
)
from outlast.agents.state.slice_type import SliceType, reducer, slice_type
from outlast.agents.state.snapshot import Snapshot
from outlast.agents.state.stored_value import Slice
from outlast.core.record import SliceValue
from outlast.core.slice import KeptSlice

__all__ = [
    "KeptSlice",
    "Reducer",
    "SessionMutation",
    "Slice",
    "SliceMutation",
    "SliceType",
    "SliceValue",
    "Snapshot",
    "append",
    "reducer",
    "replace_latest",
    "replace_latest_by",
    "slice_type",
    "upsert_by",
]
