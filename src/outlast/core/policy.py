"""An agent's settings as `decide` needs them.

Owns the types only: made from an agent's definition (`agents/`) at every claim, never stored.
Durations are milliseconds.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from outlast.core.amount import BudgetTerms

OnBusy = Literal["queue", "join", "interrupt"]
OnPartial = Literal["continue", "restart"]
OnExpiry = Literal["deny", "fail"]
Resume = Literal["transcript", "milestone"]
Interruption = Literal["rerun", "report", "ask", "fail", "reconcile"]

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


UNBOUNDED = 2**62


class ToolPolicy(Struct, frozen=True, gc=False):
    """A tool's policy: what an interruption means for it, and how often it is tried.

    A human has `answer_timeout` to say whether it may run (0: any time). After that `on_expiry`
    says whether the call is denied or the turn fails. A `restricted` tool has approvers of its own.
    A `readonly` tool has no effect that the log must know of before.
    """

    on_interrupt: Interruption = "report"
    max_attempts: int = 1
    answer_timeout: int = 0
    on_expiry: OnExpiry = "deny"
    restricted: bool = False
    readonly: bool = False


class FeedbackTrigger(Struct, frozen=True, gc=False):
    """When a feedback provider is due: every so many tool calls or milliseconds; 0 is never."""

    name: str
    calls: int = 0
    span: int = 0


class Policy(Struct, frozen=True, gc=False):
    """How an agent goes about its turns; at most `at_once` lanes at the same time, if not 0.

    A provider that asks to be left alone for up to `longest_sleep` is waited for in the worker; for
    longer, or after `max_attempts`, the next of its `models` is asked, by name in the order of
    preference; where none is left the lane parks, for `provider_patience` in all. An answer that
    one of the `checkers` refuses is sent back to the model `max_refusals` times. After a crash the
    model goes on in the conversation, or, by `resume`, from the lane's last milestone. A view that
    nears `most_tokens`, or has a result of more than `longest_result` bytes, is made shorter; where
    it `summarizes`, the model is asked to sum up what is left out.
    `tools` has every name by which the code knows a tool; None says nothing of them. Each
    turn has the `turn_budget`, and a session that says nothing else the `session_budget`.
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
    models: tuple[str, ...] = ()
    typed: bool = False
    at_once: int = 0
    tools: Mapping[str, ToolPolicy] | None = None
    feedback: tuple[FeedbackTrigger, ...] = ()
    checkers: tuple[str, ...] = ()
    max_refusals: int = 3
    resume: Resume = "transcript"
    most_tokens: int = UNBOUNDED
    longest_result: int = UNBOUNDED
    summarizes: bool = False
    turn_budget: BudgetTerms | None = None
    session_budget: BudgetTerms | None = None

    def tool(self, name: str) -> ToolPolicy:
        """Return the tool's policy; a tool that is gone from the code is treated with care."""
        return self.tools.get(name, UNKNOWN_TOOL) if self.tools else UNKNOWN_TOOL

    def lacks(self, name: str) -> bool:
        """Say whether the code of today has no tool of that name."""
        return self.tools is not None and name not in self.tools

    def model(self, name: str) -> str:
        """Return the model to ask: the one of that name, or the first where the code has it not."""
        return name if name in self.models else next(iter(self.models), "")

    def models_after(self, name: str) -> tuple[str, ...]:
        """Return the other models in the order in which they are asked: round and round."""
        place = self.models.index(name) if name in self.models else 0
        return (*self.models[place + 1 :], *self.models[:place])


UNKNOWN_TOOL = ToolPolicy()
