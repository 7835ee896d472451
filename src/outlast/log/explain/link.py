"""The parts of an explanation: causes, lane by lane."""

from msgspec import Struct

from outlast.core.record import Failure


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cause, in a sentence without its instants, with the ids that it is about.

    `kind`: over, turn, owner, worker, cancel, answer, model, provider, tool, request, callback,
    authorization, child, timer, retry, permit, key, queue, message or failure.
    """

    kind: str
    text: str
    since: int = 0
    until: int = 0
    turn: str = ""
    step: int = 0
    call: str = ""
    attempt: int = 0
    request: str = ""
    delivery: str = ""
    worker: str = ""
    fence: int = 0


class LaneExplanation(Struct, frozen=True, kw_only=True):
    """A lane, and why it stands where it does: what comes first leads to what comes after."""

    lane: str
    status: str
    links: tuple[Cause, ...]


class Explanation(Struct, frozen=True, kw_only=True):
    """A session, lane by lane. `at` is when it was looked at."""

    session_id: str
    agent: str
    status: str
    at: int
    lanes: tuple[LaneExplanation, ...]


def sentence(error: Failure) -> str:
    return f"{error.code}: {error.message}"
