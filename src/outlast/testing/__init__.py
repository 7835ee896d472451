"""Public: a scripted model, a clock, crash tools and a simulation for tests of your own."""

from typing import Any

from outlast.testing.clock import ManualClock
from outlast.testing.crash import CrashingStore, CrashPoint
from outlast.testing.crash_everywhere import crash_everywhere
from outlast.testing.ledger import Effect, Ledger
from outlast.testing.report import CrashedRun, CrashReport, RepeatedEffect
from outlast.testing.scripted import ScriptedError, ScriptedModel, ScriptedReply, call, calls, say

__all__ = [
    "CrashPoint",
    "CrashReport",
    "CrashedRun",
    "CrashingStore",
    "Effect",
    "Ledger",
    "ManualClock",
    "RepeatedEffect",
    "ScriptedError",
    "ScriptedModel",
    "ScriptedReply",
    "Simulation",
    "StoreContract",
    "call",
    "calls",
    "crash_everywhere",
    "say",
]


def __getattr__(name: str) -> Any:
    if name == "StoreContract":
        from outlast.testing.contract import StoreContract

        return StoreContract
    if name == "Simulation":
        from outlast.testing.simulation import Simulation

        return Simulation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
