"""Public: a scripted model and a clock for tests of agents, tools and stores."""

from holdfast.testing.clock import ManualClock
from holdfast.testing.scripted import Reply, ScriptedError, ScriptedModel, call, calls, say

__all__ = ["ManualClock", "Reply", "ScriptedError", "ScriptedModel", "call", "calls", "say"]
