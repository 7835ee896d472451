"""The deployment that a worker of a named deployment pins its lanes to.

Owns the rule; the store keeps pins, and its `claim` goes by them. Without a name there are none.
"""

from typing import Literal

from msgspec import Struct

from outlast.core.lane import CODE, PROVIDER, Lane
from outlast.store import ANYONE, NO_PIN, Pin

PinScope = Literal["turn", "session", "none"]
"""How long a lane stays with the deployment that took it up."""


class PinRule(Struct, frozen=True, gc=False):
    """The name of the worker's deployment, and for how long its lanes are pinned to it."""

    deployment: str = ""
    scope: PinScope = "turn"

    def after(self, lane: Lane) -> Pin:
        """Return what a lane is pinned to in this state.

        One that waits for what only a human can mend is every deployment's: what mends it may be
        the code of another one.
        """
        if not self.deployment or self.scope == "none" or lane.over:
            return NO_PIN
        if lane.turn and waits_for_mending(lane):
            return Pin(ANYONE)
        if self.scope == "session":
            return Pin(self.deployment, stays=True)
        return Pin(self.deployment) if lane.turn else NO_PIN


NO_PINS = PinRule()


def waits_for_mending(lane: Lane) -> bool:
    """Say whether a lane rests for credentials, a permission, a model or code that is not there."""
    is_blocked = lane.outage is not None and lane.outage.blocked and PROVIDER in lane.waiting
    return is_blocked or CODE in lane.waiting
