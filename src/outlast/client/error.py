"""Answers that are errors, as the errors that they are: the same classes as without a wire.

Owns which class a code becomes, and what an answer means that no Outlast server gave. Whether to
try again is decided in `retry.py` and by whoever sent the request.
"""

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from outlast import errors
from outlast.client.retry import FailedTry
from outlast.errors import OutlastError, ServerUnavailable
from outlast.net.retry_after import retry_after

BY_CODE: Mapping[str, type[OutlastError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OutlastError) and kind is not OutlastError
}

PASSING = (408, 429, 502, 503, 504)
"""Another try may succeed. Above 500 it is unknown whether the request was carried out."""

HIDDEN = "…"


class WireProblem(Struct):
    code: str
    message: str
    hint: str = ""
    details: dict[str, Any] = {}


class WireError(Struct):
    error: WireProblem


def missed_answer(response: httpx.Response, now: int, secret: str | None) -> FailedTry:
    """Return what an answer means that is an error; `now` is in milliseconds."""
    status = response.status_code
    return FailedTry(
        error_of(response, secret),
        is_passing=status in PASSING,
        is_undone=status < 500,
        wait=retry_after(response.headers.get("retry-after", ""), now),
    )


def error_of(response: httpx.Response, secret: str | None) -> OutlastError:
    try:
        problem = msgspec.json.decode(response.content, type=WireError).error
        return raisable(problem, secret)
    except (msgspec.MsgspecError, RecursionError):  # the second: details without a bottom
        return foreign(response)


def raisable(problem: WireProblem, secret: str | None) -> OutlastError:
    """Return a problem as the error of its code; what only HTTP knows of is a plain one."""
    kind = BY_CODE.get(problem.code)
    is_known = kind is not None or not problem.hint
    message = problem.message if is_known else f"{problem.message}. {problem.hint}"
    error = (kind or OutlastError)(without(message, secret))
    error.details = without(problem.details, secret)
    if kind is None:
        vars(error)["code"] = problem.code
    return error


def foreign(response: httpx.Response) -> OutlastError:
    """Return the error for an answer that no Outlast server gave."""
    status = response.status_code
    if response.is_redirect:
        said = "answers with a redirect, which is not followed: give the address that it leads to"
    else:
        said = f"answers {status}, and not as an Outlast server does: is the address right?"
    return ServerUnavailable(f"the server at {origin(response)} {said}", status=status)


def origin(response: httpx.Response) -> str:
    url = response.request.url
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def without(value: Any, secret: str | None) -> Any:
    """Return what the server said without the token, should it have repeated that."""
    if isinstance(value, str):
        return value.replace(secret, HIDDEN) if secret else value
    if isinstance(value, list):
        return [without(each, secret) for each in value]
    if isinstance(value, dict):
        return {without(name, secret): without(each, secret) for name, each in value.items()}
    return value
