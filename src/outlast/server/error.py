"""Errors over HTTP: a status, and one shape of body for every error.

Chooses statuses; knows no route. What a store says about itself stays in the log: callers
are told only whether to try again.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from outlast import errors as e
from outlast.core.visible import visible_line
from outlast.errors import OutlastError

RETRY_AFTER = 1
MOST_PROBLEMS = 20
LONGEST_NAME = 100
LONGEST_PROBLEM = 500
"""Characters of a name that was sent, and of a sentence with one in it, as an answer has them."""

CURSORS = ("cursor", "after", "lanes_after")
"""The parameters by which a reader goes on; one that was made up has an error of its own."""

STATUS: Mapping[type[OutlastError], int] = {
    e.InvalidInput: 422,
    e.InvalidDefinition: 500,
    e.UnknownAgent: 404,
    e.UnknownSession: 404,
    e.UnknownRun: 404,
    e.UnknownWorkflow: 404,
    e.UnknownDelivery: 404,
    e.UnknownRequest: 404,
    e.UnknownDeployment: 404,
    e.UnknownLane: 404,
    e.UnknownWorker: 404,
    e.UnknownKey: 404,
    e.UnknownCallback: 410,
    e.UnknownConnection: 404,
    e.UnknownSchedule: 404,
    e.UnknownQueue: 404,
    e.UnknownChannel: 404,
    e.InvalidSignature: 401,
    e.InvalidCursor: 400,
    e.MessageTooLarge: 413,
    e.HistoryGone: 410,
    e.Conflict: 409,
    e.QueueFull: 429,
    e.NotAnApprover: 403,
    e.StoreError: 500,
    e.StoreUnavailable: 503,
    e.StoreFull: 503,
    e.Unreachable: 503,
    OutlastError: 500,
}

HINTS = {
    "UNKNOWN_AGENT": "GET /v1/sessions shows which agents have sessions.",
    "UNKNOWN_SESSION": "GET /v1/sessions lists those that exist.",
    "UNKNOWN_LANE": "GET /v1/lanes lists those that a session_id has.",
    "UNKNOWN_DEPLOYMENT": "GET /v1/deployments lists them.",
    "UNKNOWN_REQUEST": "GET /v1/requests lists those that are open.",
    "REQUEST_CLOSED": "GET /v1/requests lists those that are still open.",
    "INVALID_ANSWER": "GET /v1/requests says what each request takes for an answer.",
    "NO_ACTIVE_SESSION": "Name an agent, and a session is started at this token.",
    "DISPATCH_CONFLICT": "Use another dispatch_id for other content.",
    "SESSION_OVER": "Start another session.",
    "SESSION_ERASED": "Use another dispatch_id to start anew.",
    "TASK_CANNOT_WAIT": "Start a session in conversation mode.",
    "NOTHING_TO_RETRY": "POST a message to /v1/sessions/{id}/deliveries to go on.",
    "CURSOR_AHEAD": "Read again from the beginning.",
    "INVALID_CURSOR": "Send a cursor as it came, or leave it away to begin at the beginning.",
    "SESSION_TOO_LARGE": "Start another session.",
    "QUEUE_FULL": "Send it again later, with the same dispatch_id.",
    "STORE_UNAVAILABLE": "Try again later; with the same dispatch_id nothing is done twice.",
    "UNREACHABLE": "Try again when the other server is back, or erase with cancel_remote=false.",
    "STREAM_CUT": "Come again, and go on from your cursor.",
    "STORE_FULL": "Try again later; with the same dispatch_id nothing is done twice.",
}


class ErrorResponse(HTTPException):
    """An answer that is an error: its status, and what its body says."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        hint: str = "",
        headers: Mapping[str, str] | None = None,
        **details: Any,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.code = code
        self.hint = hint or HINTS.get(code, "")
        self.details = details

    def response(self) -> JSONResponse:
        body = {
            "code": self.code,
            "message": self.detail,
            "hint": self.hint,
            "details": self.details,
        }
        return JSONResponse({"error": body}, self.status_code, self.headers)


def refusal_of(error: OutlastError) -> ErrorResponse:
    """Return what an error of ours means over HTTP."""
    status = next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    headers = {"Retry-After": str(RETRY_AFTER)} if status in (429, 503) else {}
    if status >= 500:
        told = ELSEWHERE if isinstance(error, e.Unreachable) else within(status)
        return ErrorResponse(status, error.code, told, headers=headers)
    return ErrorResponse(status, error.code, error.message, headers=headers, **plain(error.details))


ELSEWHERE = "another server, which this needs, cannot be reached now; try again"


def within(status: int) -> str:
    """Say that it is not the caller's fault, and no more."""
    if status == 503:
        return "the store cannot be reached now; try again"
    return "something went wrong here; the server's log says what"


def plain(details: Mapping[str, Any]) -> dict[str, Any]:
    """Return details as JSON has them."""
    kinds = (str, int, float, bool, type(None), list)
    return {k: v if isinstance(v, kinds) else str(v) for k, v in details.items() if k != "status"}


def refusal_of_validation(error: RequestValidationError) -> ErrorResponse:
    """Return what does not fit a request's shape; what was sent is not repeated."""
    found = error.errors()
    for each in found:
        if each["loc"][0] == "query" and each["loc"][-1] in CURSORS:
            return invalid_cursor(str(each["loc"][-1]))
    problems = [
        {"at": place_in(each["loc"]), "problem": visible_line(str(each["msg"])[:LONGEST_PROBLEM])}
        for each in found[:MOST_PROBLEMS]
    ]
    first = problems[0] if problems else {"at": "request", "problem": "does not fit"}
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return ErrorResponse(
        422,
        "INVALID_INPUT",
        f"the request does not fit: {first['at']}: {first['problem']}{more}",
        hint="GET /v1/openapi.json says what fits.",
        problems=problems,
    )


def place_in(path: Iterable[str | int]) -> str:
    """Return where in a body something is. Names of fields are the caller's: they have any size."""
    return ".".join(visible_line(str(part)[:LONGEST_NAME]) for part in path)


def invalid_cursor(name: str) -> ErrorResponse:
    """Return what is said to a cursor that no answer gave; it is not repeated."""
    return ErrorResponse(
        400, e.InvalidCursor.code, f"`{name}` is no cursor that an answer gave", cursor=name
    )


def internal() -> ErrorResponse:
    return ErrorResponse(500, "INTERNAL_ERROR", within(500))


def unavailable() -> ErrorResponse:
    """Return what a request is told that took too long."""
    headers = {"Retry-After": str(RETRY_AFTER)}
    return ErrorResponse(503, "STORE_UNAVAILABLE", within(503), headers=headers)
