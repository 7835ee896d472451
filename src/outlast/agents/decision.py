"""Hooks that decide about a tool call before it is recorded: allow, deny, change or ask.

A decision stands in the log with the call that it is about, so it is taken once. A hook that
fails or takes too long lets nothing through.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from outlast.agents.runtime.json_value import to_json
from outlast.agents.runtime.thread import ToolThreads
from outlast.core.message import check_text
from outlast.core.result import RequestedCall
from outlast.core.setting import one_of
from outlast.errors import InvalidInput
from outlast.log_context import get_logger

log = get_logger("outlast.agents.hook")

How = Literal["allow", "deny", "change", "ask"]

LONGEST_DECISION = 30.0
"""Seconds that a hook has to decide."""


class ProposedCall(Struct, frozen=True, kw_only=True):
    """A tool call that a model asks for. `asks` says whether a human is asked anyway."""

    session_id: str
    agent: str
    tenant: str
    principal: str
    call_id: str
    tool: str
    args: Mapping[str, Any]
    asks: str = ""


class Decision(Struct, frozen=True):
    """A hook's decision about a call; use the functions to make one."""

    how: How
    reason: str = ""
    args: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        one_of(How, "a decision", self.how)
        check_text("the reason of a decision", self.reason)
        if self.args is not None and not isinstance(self.args, Mapping):
            raise InvalidInput("the arguments of a decision are a mapping by name")

    @staticmethod
    def allow() -> Decision:
        """Allow the call; if the tool needs approval, a human is still asked."""
        return Decision("allow")

    @staticmethod
    def deny(reason: str) -> Decision:
        """Refuse the call, and tell the model why."""
        return Decision("deny", reason)

    @staticmethod
    def change(args: Mapping[str, Any]) -> Decision:
        """Run the call with other arguments, which are checked like the model's."""
        return Decision("change", args=args)

    @staticmethod
    def ask() -> Decision:
        """Ask a human to approve the call."""
        return Decision("ask")


async def call_hook(function: Callable[[Any], Any], about: Any, threads: ToolThreads) -> Any:
    """Return what a hook says; a sync one has a thread, so that its time can run out."""
    if inspect.iscoroutinefunction(function):
        return await function(about)
    said = await threads.run(lambda: function(about), getattr(about, "tenant", ""))
    return await said if inspect.isawaitable(said) else said


class Decider(Struct, frozen=True):
    """A hook by its name; asked only about the tools that are named, or about all."""

    name: str
    function: Callable[[ProposedCall], Any]
    threads: ToolThreads
    tools: frozenset[str] = frozenset()

    async def decide(self, call: ProposedCall) -> Decision:
        """Return what the hook says; nothing is the same as allow."""
        try:
            async with asyncio.timeout(LONGEST_DECISION):
                found = await call_hook(self.function, call, self.threads)
        except Exception:
            log.exception("a hook failed; what it was asked about is denied")
            return Decision.deny(f"the hook {self.name} failed")
        if found is not None and not isinstance(found, Decision):
            log.error("a hook returned no Decision; what it was asked about is denied")
            return Decision.deny(f"the hook {self.name} returned no Decision")
        return found or Decision.allow()


async def decided(
    wanted: RequestedCall,
    call: ProposedCall,
    deciders: Sequence[Decider],
    look: Callable[[str], RequestedCall],
) -> RequestedCall:
    """Return a call as the hooks leave it, asked in their order, until one denies it.

    `look` says what becomes of the call with other arguments.
    """
    asks = ""
    for decider in deciders:
        if decider.tools and call.tool not in decider.tools:
            continue
        decision = await decider.decide(call)
        how, by = decision.how, decider.name
        if how == "change":
            call = replace(call, args=decision.args or {})
            looked = look(text := to_json(call.args))
            if looked.refusal:
                decision = Decision.deny(f"the hook {by} gave it arguments that do not fit")
            else:
                wanted = replace(looked, changed=text)
        elif how == "ask":
            asks = "always"
        if decision.how == "deny":
            reason = decision.reason or f"the hook {by} said no"
            return replace(wanted, decision="deny", decided_by=by, denied=reason)
        if how != "allow":
            wanted = replace(wanted, decision=how, decided_by=by)
    return replace(wanted, asks=asks) if asks else wanted
