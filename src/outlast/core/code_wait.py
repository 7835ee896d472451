"""Decides about calls whose tool the code of today does not have: they wait for other code.

A deploy that renamed a tool, or one that is half done, must not cost what a human has allowed. So
such a call waits for a worker whose code has the tool, or one with its name among its aliases.
Refuses to know which workers there are: the lane is given back, and looked at again from time to
time by whichever worker takes it.
"""

from typing import Literal

from outlast.core.lane import ArrivedReply, Lane, OpenCall, OpenRequest
from outlast.core.policy import MINUTE, SECOND, Policy

CODE_PATIENCE = 10 * MINUTE
"""How long a call waits for its tool that no human has allowed or helped."""
FIRST_LOOK, LONGEST_LOOK = 2 * SECOND, MINUTE
"""How soon another worker may look at the lane, and the longest pause between two looks."""


def without_tool(
    call: OpenCall, lane: Lane, now: int, *, can_go_on: bool
) -> Literal["wait", "vanished", "gone", "report"]:
    """Say what a call needs whose tool is not there; one that cannot go on yet waits for that."""
    if not can_go_on and not any(is_withheld(lane, call, reply) for reply in lane.replies):
        return "wait"
    if not call.vanished:
        return "vanished"
    if is_wanted(call) or now < call.vanished + CODE_PATIENCE:
        return "wait"
    return "report" if call.status == "cut" or call.reconciles else "gone"


def is_wanted(call: OpenCall) -> bool:
    """Say whether a human was asked about a call, or it has come so far that it must not be lost.

    Such a call waits for its tool for as long as it takes.
    """
    return bool(call.asks or call.request or call.memo)


def next_look(call: OpenCall, now: int) -> int:
    """Return when a lane is given to a worker again, in case that has the call's tool.

    The pause is as long as the call has waited by then.
    """
    pause = min(max(now - call.vanished, FIRST_LOOK), LONGEST_LOOK)
    if is_wanted(call):
        return now + pause
    return max(now + 1, min(now + pause, call.vanished + CODE_PATIENCE))


def open_reply(lane: Lane, policy: Policy) -> ArrivedReply | None:
    """Return the first reply that can be taken with the code of today."""
    for reply in lane.replies:
        call = call_asked_about(lane, reply)
        if call is None or not (policy.lacks(call.tool) and is_withheld(lane, call, reply)):
            return reply
    return None


def is_withheld(lane: Lane, call: OpenCall, reply: ArrivedReply) -> bool:
    """Say whether only the code of the call's tool can say if a reply may be taken."""
    request = request_of(lane, reply)
    return bool(request and request.restricted and request.call_id == call.call_id)


def call_asked_about(lane: Lane, reply: ArrivedReply) -> OpenCall | None:
    """Return the call that a reply lets run or not; other waits are not about a call here."""
    request = request_of(lane, reply)
    if lane.turn is None or request is None or not request.is_question:
        return None
    if request.name or request.origin:
        return None
    return lane.turn.calls.get(request.call_id)  # a budget's is about none


def request_of(lane: Lane, reply: ArrivedReply) -> OpenRequest | None:
    return lane.turn.requests.get(reply.request_id) if lane.turn else None
