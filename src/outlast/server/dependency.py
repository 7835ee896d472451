"""FastAPI dependencies of the routes: principal and scope, the backend, documented errors.

Owns which scope stands behind which name (`Reader`, `Sender`, `Admin`, …). Who a caller is was
found before any route is asked: see `auth.py`.
"""

from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes

from outlast.server.backend import ServerBackend
from outlast.server.body import AnyScope
from outlast.server.model.shape import ErrorBody
from outlast.server.principal import ADMIN, APPROVE, INTERNALS, READ, SEND, Principal

bearer = HTTPBearer(
    scheme_name="key",
    description="A key that `outlast keys create` made: `Authorization: Bearer outlast_…`",
    auto_error=False,
)

ERRORS = {
    400: "The body is not JSON, or a cursor is none that an answer gave.",
    401: "No key was given, or it is not known.",
    403: "The key lacks the scope for this.",
    404: "There is nothing of this name, or not for this key.",
    405: "Not with this method.",
    408: "The body did not come in time.",
    409: "Well formed, but not now: `code` says why.",
    410: "The cursor is beyond the log's end, or the address leads nowhere any more.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The server does not answer to this name.",
    422: "The request does not fit its description.",
    429: "Too much at once: try again after `Retry-After` seconds.",
    431: "The headers are too large.",
    503: "The store cannot be reached: try again after `Retry-After` seconds.",
}
ALWAYS = (401, 403, 408, 413, 421, 422, 429, 431, 503)
WITH_BODY = (400, 415)
OF_CALLERS = (401, 403, 429)


async def gate_of(request: Request) -> ServerBackend:
    """Return the backend; a coroutine, since FastAPI would start a thread for a plain function."""
    found: ServerBackend = request.app.state.backend
    return found


async def check(
    request: Request,
    needed: SecurityScopes,
    _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)] = None,
) -> Principal:
    """Return the principal that the middleware found; `bearer` is here for the OpenAPI document."""
    return (await gate_of(request)).principal(request, *needed.scopes)


Served = Annotated[ServerBackend, Depends(gate_of)]
Reader = Annotated[Principal, Security(check, scopes=[READ])]
Sender = Annotated[Principal, Security(check, scopes=[SEND])]
Approver = Annotated[Principal, Security(check, scopes=[APPROVE])]
SenderOrApprover = Annotated[Principal, Security(check), AnyScope((SEND, APPROVE))]
Insider = Annotated[Principal, Security(check, scopes=[INTERNALS])]
Admin = Annotated[Principal, Security(check, scopes=[ADMIN])]


def answers(
    *statuses: int, body: bool = False, is_open: bool = False
) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of the errors that a route may answer with."""
    known = {*ALWAYS, *statuses, *(WITH_BODY if body else ())}
    known -= set(OF_CALLERS) if is_open else set()
    return {status: {"model": ErrorBody, "description": ERRORS[status]} for status in sorted(known)}
