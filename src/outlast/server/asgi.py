"""The server as one ASGI app: run by itself, or mounted in another.

Owns the order of the middleware, and what a request is told that no route takes. Sockets are the
affair of `serve.py`; what the routes do is in `route/` and `stream/`.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from outlast.app import Outlast
from outlast.errors import OutlastError, StoreError
from outlast.log_context import get_logger
from outlast.net import trace_context
from outlast.server.address import path_of
from outlast.server.auth import AuthMiddleware
from outlast.server.backend import ServerBackend
from outlast.server.error import ErrorResponse, refusal_of, refusal_of_validation
from outlast.server.limit import RequestLimitMiddleware
from outlast.server.openapi import describe, operation_id
from outlast.server.route import (
    agent,
    budget,
    bulk,
    callback,
    channel,
    connection,
    control,
    delivery,
    fleet,
    health,
    queue,
    reading,
    request,
    run,
    session,
    state,
    usage,
)
from outlast.server.settings import ServerSettings
from outlast.server.stream import route as stream

log = get_logger("outlast.server")

PREFIX = "/v1"
ROUTERS = (
    session.router,
    delivery.router,
    control.router,
    state.router,
    bulk.router,
    reading.router,
    reading.waiting,
    stream.router,
    agent.router,
    run.starting,
    run.router,
    request.router,
    fleet.router,
    queue.router,
    usage.router,
    budget.router,
    callback.router,
    channel.router,
    connection.router,
    health.router,
)
EXPOSED = (
    "ETag Outlast-Cursor Location Retry-After Stream-Next-Offset Stream-Up-To-Date Stream-Cursor "
    "Stream-Closed"
).split()

ACCEPTED = "Authorization Content-Type Last-Event-ID If-None-Match traceparent".split()


def create(app: Outlast, settings: ServerSettings | None = None) -> FastAPI:
    """Return the server of an app. By itself it opens the app and closes it at the end."""
    settings = settings or ServerSettings()
    backend = ServerBackend(app, settings)
    api = FastAPI(
        title="Outlast",
        version=version("outlast"),
        description="Durable execution for AI agents, over HTTP.",
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # it would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        generate_unique_id_function=operation_id,
        middleware=middleware(app, settings),
        lifespan=life(backend),
        telemetry={"tracing": False, "metrics": False, "logs": False},  # addresses hold secrets
    )
    api.state.backend = backend
    for router in ROUTERS:
        api.include_router(router, prefix=PREFIX)
    api.include_router(health.router, include_in_schema=False)  # where probes expect it
    add_handlers(api)
    describe(api)
    return api


def middleware(app: Outlast, settings: ServerSettings) -> list[Middleware]:
    """Return what a request passes, from the outside in."""
    found = [Middleware(RequestLimitMiddleware, settings=settings, clock=app.clock)]
    if settings.cors_origins:
        found.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "HEAD", "POST", "PUT", "DELETE"],
                allow_headers=ACCEPTED,
                expose_headers=EXPOSED,
                max_age=600,
            )
        )
    found.append(Middleware(AuthMiddleware, store=app.store, clock=app.clock, settings=settings))
    found.append(Middleware(TraceContextMiddleware))
    return found


class TraceContextMiddleware:
    """Has what a request sends to sessions be linked with the trace that the request is part of."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = trace_context.HEADER.encode()
        found = [value.decode("latin-1") for key, value in scope.get("headers", ()) if key == name]
        with trace_context.asked_by(found):
            await self._app(scope, receive, send)


def life(backend: ServerBackend) -> Callable[[FastAPI], Any]:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with nullcontext() if backend.app.is_open else backend.app:
            try:
                yield
            finally:
                backend.close()

    return lifespan


def add_handlers(api: FastAPI) -> None:
    """Give every error its shape."""

    @api.exception_handler(OutlastError)
    async def of_ours(_: Request, error: OutlastError) -> Response:
        if isinstance(error, StoreError):
            log.warning("a request met a store that fails", extra={"code": error.code})
        return refusal_of(error).response()

    @api.exception_handler(RequestValidationError)
    async def of_shape(_: Request, error: RequestValidationError) -> Response:
        return refusal_of_validation(error).response()

    @api.exception_handler(HTTPException)
    async def of_http(request: Request, error: HTTPException) -> Response:
        return (
            error if isinstance(error, ErrorResponse) else of_routing(request, error)
        ).response()


def methods_at(path: str) -> list[str]:
    """Return the methods that there are for a path, whichever route has them."""
    routes = (route for router in ROUTERS for route in router.routes if isinstance(route, Route))
    matching = (route for route in routes if compile_path(PREFIX + route.path)[0].match(path))
    return sorted({method for route in matching for method in route.methods or ()})


def of_routing(request: Request, error: HTTPException) -> ErrorResponse:
    """Return what a request is told that no route takes."""
    if error.status_code == 405:
        methods = ", ".join(methods_at(path_of(request.scope)))
        return ErrorResponse(
            405,
            "METHOD_NOT_ALLOWED",
            f"{request.method[:20]} is not allowed on this path",
            headers={"Allow": methods} if methods else error.headers,
        )
    if error.status_code == 404:
        return ErrorResponse(
            404,
            "UNKNOWN_ROUTE",
            "there is nothing at this address",
            hint="GET /v1/openapi.json lists what there is.",
        )
    return ErrorResponse(error.status_code, "INVALID_REQUEST", str(error.detail))
