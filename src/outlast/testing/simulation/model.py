"""The allowed fates of deliveries and calls: a small model of Outlast seen from outside.

Pure, and made from the design alone: what people asked for and what the world saw of each
call go in, what the log may say of it comes out. It knows nothing of how the engine works.
"""

from msgspec import Struct


class DeliveryFacts(Struct, frozen=True, kw_only=True):
    """All that matters for what becomes of one delivery."""

    kind: str
    stopped: bool
    """A user cancelled or ended something there, or a newer message interrupts."""
    over: bool
    """The session has ended."""


def may_settle(facts: DeliveryFacts) -> set[str]:
    """Return the outcomes that a delivery may have."""
    match facts.kind:
        case "event":
            return {"answered", "refused"} if facts.over else {"answered"}
        case "reply" | "relay":
            return {"answered", "ignored"}
        case "cancel":
            return {"completed", "ignored"}
        case "change":
            return {"completed", "refused"}
    allowed = {"completed", "failed"}
    if facts.kind == "retry":
        allowed |= {"ignored"}
    if facts.stopped or facts.over:
        allowed |= {"cancelled"}
    if facts.over:
        allowed |= {"refused"}
    return allowed


class CallFacts(Struct, frozen=True, kw_only=True):
    """All that the world knows of one tool call."""

    on_interrupt: str
    starts: int
    """How often the log says that it may have begun."""
    waits: int = 0
    failures: int = 0
    """Definite failures after which it was tried again by itself."""
    cuts: int = 0
    """Crashes, stops and time limits that cut it off."""
    allowed: int = 0
    """How often a human said that it should be run again."""
    returned: frozenset[str] = frozenset()
    raised: frozenset[str] = frozenset()


def may_start(facts: CallFacts) -> int:
    """Return how often a call may have been started, at most."""
    innocent = 1 + facts.waits + facts.failures
    if facts.on_interrupt in ("rerun", "reconcile"):
        return innocent + facts.cuts
    return innocent + facts.allowed


def may_end(facts: CallFacts, how: str, value: str) -> bool:
    """Say whether a call may have this outcome: what the log says was really so."""
    match how:
        case "completed":
            return value in facts.returned
        case "failed":
            return facts.starts == 0 or value in facts.raised
        case "interrupted":
            return facts.starts > 0
    return how == "denied" and facts.starts == 0
