"""Public: a scripted model, a clock, crash tools and a simulation for tests of your own."""

from typing import Any

from holdfast.testing.clock import ManualClock
from holdfast.testing.crash import CrashingStore
from holdfast.testing.everywhere import crash_everywhere
from holdfast.testing.ledger import Ledger
from holdfast.testing.scripted import Reply, ScriptedError, ScriptedModel, call, calls, say

__all__ = [
    "CrashingStore",
    "Ledger",
    "ManualClock",
    "Reply",
    "ScriptedError",
    "ScriptedModel",
    "Simulation",
    "StoreContract",
    "call",
    "calls",
    "crash_everywhere",
    "say",
]


def __getattr__(name: str) -> Any:
    if name == "StoreContract":
        from holdfast.testing.store_contract import StoreContract

        return StoreContract
    if name == "Simulation":
        from holdfast.testing.simulation import Simulation

        return Simulation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
