"""Waits that are never found again: what is asked differs in every run of the tool.

Such a tool would ask for ever, and a child that is asked anew is a paid session. A run that was
woken by an answer, did not ask for it and stops at something new counts; after a few in a row the
call ends. Owns that count and what is said then; `outcome.py` records it.
"""

import msgspec

from outlast.core.lane import OpenCall
from outlast.core.message import text_of
from outlast.core.record import Failure
from outlast.core.result import NewWait, ToolWaits

UNSTABLE_WAIT = "UNSTABLE_WAIT"
MOST, MOST_OF_CHILDREN = 3, 2
"""How many runs in a row may do so; the last ends the call instead of asking again."""
EXCERPT = 200


class PastWait(msgspec.Struct, gc=False):
    """The memory of a wait that is over: its question, or the message to the child."""

    prompt: str = ""
    asked: str = ""

    @property
    def words(self) -> str:
        return (self.prompt or self.asked)[:EXCERPT]


def count_unstable(call: OpenCall, end: ToolWaits) -> int:
    """Return how many runs in a row, with this one, left the answer that woke them unused."""
    # Nothing has woken it: this is its first stop, or one after a crash.
    if not call.woken_by:
        return call.unstable
    is_new = any(wait.name not in call.waits_for for wait in end.waits)
    return call.unstable + 1 if call.woken_by in end.unused and is_new else 0


def unstable(call: OpenCall, end: ToolWaits) -> Failure | None:
    """Return why a call has to end that would ask another thing in every run."""
    count = count_unstable(call, end)
    if count < MOST_OF_CHILDREN or not call.woken_by:
        return None
    past = past_wait(call, call.woken_by)
    asks_child = past.asked or any(wait.child for wait in end.waits)
    if count < (MOST_OF_CHILDREN if asks_child else MOST):
        return None
    new = next(wait for wait in end.waits if wait.name not in call.waits_for)
    before = past.words or call.woken_by
    return Failure(
        UNSTABLE_WAIT,
        f"{call.tool} was woken {count} times by an answer that it did not ask for again, and asked"
        f" something new: {before!r} was answered, and now it asks {excerpt(new) or new.name!r}. If"
        " that is the same question, give it a name (name=…), or put what differs (a price, a time)"
        " into ctx.step",
    )


def past_wait(call: OpenCall, name: str) -> PastWait:
    """Return what is known of a wait of a call that is over."""
    try:
        return msgspec.json.decode(call.memo.get(name) or "{}", type=PastWait)
    except msgspec.DecodeError:  # a time that is over, or what came from outside
        return PastWait()


def excerpt(wait: NewWait) -> str:
    """Return the beginning of what a wait asks."""
    if wait.question:
        return wait.question.prompt[:EXCERPT]
    if wait.child is None:
        return ""
    return (wait.child.input or text_of(wait.child.content))[:EXCERPT]
