"""The OpenAPI document: made of the routes and their types, with what every answer has added.

Owns only what FastAPI does not know of them or gets wrong: headers of all answers, scopes, nulls in
examples. The types themselves are in `model/`.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from outlast.server.model.shape import examples
from outlast.server.principal import SCOPES

TAGS = {
    "sessions": "Start sessions, list them, look at them, erase them.",
    "deliveries": "Send to a session, by its id or by its continuation token.",
    "control": "Cancel, end, retry, compact, rewind, anchor.",
    "streams": "Read a session's log, and what is added to it.",
    "agents": "The one session of an agent that has a key.",
    "runs": "Start runs of workflows, list them, read and steer them.",
    "requests": "What humans are asked, and their answers.",
    "fleet": "Lanes, workers, providers and queues.",
    "usage": "What models were used for, and what that has cost.",
    "budgets": "What the tenant, its principals and its sessions may use.",
    "callbacks": "Outside events that tools wait for.",
    "connections": "Where people come back to from signing in.",
    "health": "How the server is.",
}


def operation_id(route: APIRoute) -> str:
    """Name an operation after its function."""
    return route.name


def describe(api: FastAPI) -> None:
    """Have the app give this document instead of the plain one."""

    def document() -> dict[str, Any]:
        if api.openapi_schema is None:
            api.openapi_schema = complete(
                get_openapi(
                    title=api.title,
                    version=api.version,
                    description=f"{api.description}\n\n{about_scopes()}",
                    routes=api.routes,
                    tags=[{"name": name, "description": text} for name, text in TAGS.items()],
                )
            )
        return api.openapi_schema

    api.openapi = document  # type: ignore[method-assign]


def about_scopes() -> str:
    lines = [f"- `{name}`: {text}" for name, text in SCOPES.items()]
    return "\n".join(["A key has scopes:", "", *lines])


def complete(document: dict[str, Any]) -> dict[str, Any]:
    """Take away what FastAPI adds that is not so here, and put back the nulls in examples."""
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for name, shown in examples().items():
        if name in schemas:
            schemas[name]["examples"] = shown
    return document
