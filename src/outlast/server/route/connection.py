"""Where people come back to from signing in, and are told in a sentence how that ended.

The `state` is the authorization and is good for one sign-in. Where the app has `authenticate`, the
user must also be the one who was asked. The page is plain text and the same for all users.
"""

from inspect import isawaitable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse

from outlast.errors import StoreError
from outlast.integration.connection.oauth_callback import SignInOutcome
from outlast.server.backend import ServerBackend, is_id
from outlast.server.body import in_time
from outlast.server.dependency import ERRORS, Served
from outlast.server.error import ErrorResponse
from outlast.server.model.shape import ErrorBody

router = APIRouter(prefix="/connections", tags=["connections"])

PAGES: dict[SignInOutcome, tuple[int, str, str]] = {
    "completed": (200, "Signed in", "The task goes on. You can close this page."),
    "denied": (200, "Not signed in", "You did not allow it. The task is told so."),
    "failed": (200, "Not signed in", "The service refused the sign-in. The task is told so."),
    "again": (503, "Not signed in yet", "It did not work. Open the link to sign in once more."),
    "expired": (410, "Too late", "This link has expired. Ask for another one."),
    "used": (409, "Already used", "This link was used before. There is nothing more to do."),
    "closed": (410, "Not needed any more", "The task does not wait for this any longer."),
    "mixed_up": (400, "Not signed in", "This comes from another service than it was asked of."),
    "stranger": (403, "Not yours", "Somebody else was asked to sign in here."),
    "anonymous": (401, "Who are you?", "Log in here with this browser, and open this page again."),
    "unknown": (404, "Nothing here", "No sign-in was begun with this link."),
}
PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body><h1>{title}</h1><p>{sentence}</p></body>
</html>
"""
SHOWN: dict[int | str, dict[str, Any]] = {
    status: {
        "description": f"A page: {title}.",
        "content": {"text/html": {"schema": {"type": "string"}}},
    }
    for status, title, _ in PAGES.values()
}
PLAIN: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": ERRORS[status]} for status in (421, 422, 431)
}
Given = Annotated[str, Query(description="As the provider says it.")]


@router.get("/{name}/callback", response_class=HTMLResponse, responses={**PLAIN, **SHOWN})
async def come_back(
    name: str,
    request: Request,
    backend: Served,
    state: Given = "",
    code: Given = "",
    error: Given = "",
    iss: Given = "",
) -> HTMLResponse:
    """Complete a sign-in when the user returns from the provider. The state is the key."""
    try:
        tenant, principal = await caller_of(request, backend)
        work = backend.app.connections.complete(
            name if is_id(name) else "",
            state=state,
            code=code,
            error=error,
            iss=iss,
            tenant=tenant,
            principal=principal,
        )
        ending = await in_time(work, backend.settings.timeout)
    except (StoreError, ErrorResponse):
        ending = "again"  # what was begun goes on without us
    return page(ending)


async def caller_of(request: Request, backend: ServerBackend) -> tuple[str | None, str | None]:
    """Return whose browser this is by the app's own `authenticate`, as a Comeback has it."""
    if backend.settings.authenticate is None:
        return None, None
    found = backend.settings.authenticate(request)
    known = await found if isawaitable(found) else found
    return (known.tenant, known.name) if known else (None, "")


def page(ending: str) -> HTMLResponse:
    status, title, sentence = PAGES[ending]  # type: ignore[index]
    headers = {"Retry-After": "1"} if status == 503 else None
    return HTMLResponse(PAGE.format(title=title, sentence=sentence), status, headers)
