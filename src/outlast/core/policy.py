"""An agent's settings as `decide` needs them.

Owns the types only: made from an agent's definition (`agents/`) at every claim, never stored.
Durations are milliseconds.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

OnBusy = Literal["queue", "join", "interrupt"]
OnPartial = Literal["continue", "restart"]
OnExpiry = Literal["deny", "fail"]
Interruption = Literal["rerun", "report", "ask", "fail", "reconcile"]

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


class ToolPolicy(Struct, frozen=True, gc=False):
    """A tool's policy: what an interruption means for it, and how often it is tried.

    A human has `answer_timeout` to say whether it may run (0: any time); what becomes of it if
    nobody does, `on_expiry` says: the call is denied, or the turn fails. Of a `restricted` one
    not everybody may say so. A `readonly` tool has no effect that the log must know of before.
    """

    on_interrupt: Interruption = "report"
    max_attempts: int = 1
    answer_timeout: int = 0
    on_expiry: OnExpiry = "deny"
    restricted: bool = False
    readonly: bool = False


class Policy(Struct, frozen=True, gc=False):
    """How an agent goes about its turns; at most `at_once` lanes at the same time, if not 0.

    A provider that asks to be left alone for up to `longest_sleep` is waited for in the worker; for
    longer, or after `max_attempts`, the lane parks, for `provider_patience` in all.
    """

    on_busy: OnBusy = "queue"
    on_partial: OnPartial = "continue"
    max_steps: int = 50
    max_crashes: int = 10
    max_corrections: int = 3
    turn_timeout: int = HOUR
    max_attempts: int = 4
    longest_sleep: int = 5 * SECOND
    provider_patience: int = 24 * HOUR
    typed: bool = False
    at_once: int = 0
    tools: Mapping[str, ToolPolicy] = {}

    def tool(self, name: str) -> ToolPolicy:
        """Return the tool's policy; a tool that is gone from the code is treated with care."""
        return self.tools.get(name, UNKNOWN_TOOL)


UNKNOWN_TOOL = ToolPolicy()
