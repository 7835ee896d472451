"""Typed session state: slice types, reducers and snapshots."""

from outlast.agents.state.reducer import (
    Reducer,
    append,
    replace_latest,
    replace_latest_by,
    upsert_by,
)
from outlast.agents.state.slice_type import reducer, slice_type
from outlast.agents.state.snapshot import Snapshot
from outlast.agents.state.stored_value import Slice

__all__ = [
    "Reducer",
    "Slice",
    "Snapshot",
    "append",
    "reducer",
    "replace_latest",
    "replace_latest_by",
    "slice_type",
    "upsert_by",
]
