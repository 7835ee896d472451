"""The failure that an exception of users' code becomes, for the log and for the model.

Owns codes and sentences, which are bounded and can be stored whatever was raised. Whether a failure
is tried again is decided in the core (`core/outcome.py`).
"""

from outlast.core.message import storable
from outlast.core.record import Failure
from outlast.errors import Retry, ToolError

LONGEST_FAILURE = 10_000


def failure_of(error: BaseException) -> Failure:
    """Return an exception as the model and the log get it: never endless, always storable."""
    return Failure(code_of(error), failure_text(sentence_of(error)))


def failure_text(sentence: str) -> str:
    sentence = storable(sentence)
    return sentence if len(sentence) <= LONGEST_FAILURE else sentence[:LONGEST_FAILURE] + "…"


def sentence_of(error: BaseException) -> str:
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
