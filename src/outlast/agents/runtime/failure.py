"""What became of somebody's own code that raised, as the model and the log get it."""

from __future__ import annotations

from outlast.clock import Clock
from outlast.core.record import Failure
from outlast.errors import Retry, ToolError

LONGEST_FAILURE = 10_000


def failure_of(error: BaseException) -> Failure:
    """Return an exception as the model and the log get it: never endless, always storable."""
    sentence = storable(words_of(error))
    if len(sentence) > LONGEST_FAILURE:
        sentence = sentence[:LONGEST_FAILURE] + "…"
    return Failure(code_of(error), sentence)


def words_of(error: BaseException) -> str:
    """Return what an exception says, of what kind it is, where it can say anything."""
    kind = type(error).__name__
    try:
        return str(error) if isinstance(error, ToolError) else f"{kind}: {error}"
    except Exception:  # noqa: BLE001 - its own `__str__`
        return kind


def code_of(error: BaseException) -> str:
    code = getattr(error, "code", None)
    if not isinstance(code, str) or isinstance(error, SystemExit):  # whose code is a status
        return "TOOL_ERROR"
    if code == Retry.code and not isinstance(error, Retry):  # which says that the model is to blame
        return "TOOL_ERROR"
    return storable(code)


def reason_of(group: BaseException) -> BaseException:
    """Return what a task group failed for, where that is one thing, or what a tool says itself."""
    if not isinstance(group, BaseExceptionGroup):
        return group
    reasons = [reason_of(error) for error in group.exceptions]
    said = [reason for reason in reasons if isinstance(reason, ToolError)]
    return next(iter(said or reasons)) if said or len(reasons) == 1 else group


def storable(text: str) -> str:
    """Return a text without the halves of characters that a provider may send."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def backoff(clock: Clock, failed: int) -> int:
    """Return how long to wait after so many failures, in milliseconds."""
    return int(clock.jitter(500 * 2.0**failed))
