"""Whether an answer fits what was asked: all that is said against it before it is written.

Tells the one who answers at once. What guards the call is the same check by the lane's owner, when
it takes the answer (`engine/lane_runner.py`): that one has the code of the moment.
"""

from collections.abc import Mapping
from typing import Any

from outlast.agents.runtime.json_value import to_json
from outlast.agents.tool import Tool, may_approve
from outlast.core import record as r
from outlast.core.json_text import JsonRefused, read_object
from outlast.core.message import check_text
from outlast.errors import InvalidAnswer, NotAnApprover, Retry

OF_AN_ANSWER = "the arguments of the answer are"
"""How the sentence begins that refuses them."""


def check_answer(
    asked: r.RequestOpened,
    option: str | None,
    text: str | None,
    args: Mapping[str, Any] | None,
) -> None:
    """Say what is wrong with an answer, by the question alone."""
    known = [o.id for o in asked.options]
    if text is not None:
        check_text("the text of an answer", text)
    if option is None and text is None:
        raise InvalidAnswer("an answer needs an option or a text", request=asked.request_id)
    if option is not None and option not in known:
        raise InvalidAnswer(
            f"{option!r} is not among the options: {', '.join(known) or 'none, answer by text'}",
            request=asked.request_id,
        )
    if option is None and not asked.allow_freeform:
        raise InvalidAnswer(
            f"this takes one of the options: {', '.join(known)}", request=asked.request_id
        )
    if asked.kind == "interrupted" and option is None:
        raise InvalidAnswer(f"say which: {', '.join(known)}", request=asked.request_id)
    if args is not None and not isinstance(args, Mapping):
        raise InvalidAnswer(
            f"arguments are a mapping by name, not {type(args).__name__}", request=asked.request_id
        )
    if args is not None and (asked.kind != "approval" or option != "approve"):
        raise InvalidAnswer(
            "arguments can be changed when approving a call only", request=asked.request_id
        )


async def check_approver(tool: Tool | None, asked: r.RequestOpened, principal: str) -> None:
    """Refuse an answer whose principal may not answer for the tool, or not here."""
    # Refused where the code is missing: the rule of who may answer is a guard.
    if tool is None and asked.restricted:
        raise NotAnApprover(
            f"the rule of who may answer for {asked.tool} is in code that this process does not"
            " have: answer in a process that has its agent",
            request=asked.request_id,
        )
    if tool and not await may_approve(tool, principal, asked.requesters):
        raise NotAnApprover(
            f"{principal or 'a caller without a principal'} may not answer for {asked.tool}:"
            " somebody else has to",
            request=asked.request_id,
        )


def checked_args(
    tool: Tool | None, asked: r.RequestOpened, args: Mapping[str, Any] | None, option: str | None
) -> str:
    """Return the arguments that a call was approved with, if its tool takes them."""
    if args is None:
        # A denial needs no arguments that fit.
        allows = option in ("approve", "rerun")
        if allows and tool and (misfit := tool.misfit(asked.tool, asked.args)):
            raise InvalidAnswer(misfit, request=asked.request_id)
        return ""
    try:
        text = check_text("what the arguments come to", to_json(args, OF_AN_ANSWER))
        read_object(text.encode())  # also where the tool is not at hand that would read it
        if tool:
            tool.arguments.parse(text)
    except JsonRefused as why:
        raise InvalidAnswer(
            f"the arguments are not JSON that everybody reads alike: {why}",
            request=asked.request_id,
        ) from None
    except Retry as error:
        raise InvalidAnswer(error.message, request=asked.request_id) from None
    return text
