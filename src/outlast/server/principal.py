"""The principal of a request, and the scopes that say what it may do."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

READ = "read"
SEND = "send"
APPROVE = "approve"
INTERNALS = "internals"
ADMIN = "admin"

SCOPES = {
    READ: "read sessions, their streams, open requests and lanes",
    SEND: "start sessions, send messages, cancel, end and retry, one or many",
    APPROVE: "answer requests",
    INTERNALS: "see internal events, workers and metrics",
    ADMIN: "erase sessions, and all of the above",
}


class Principal(Struct, frozen=True):
    """An authenticated caller: its tenant, its name and its scopes.

    `key_id` is the id of the store's key that it came with, if any.
    """

    tenant: str
    name: str
    scopes: frozenset[str] = frozenset()
    key_id: str = ""

    def may(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes


LOCAL = Principal("default", "local", frozenset(SCOPES))
"""The caller on this machine, where no key is required."""

PRINCIPAL = "outlast_principal"
"""Where the middleware puts it into the state of a request."""


def caller(principal: Principal) -> str:
    """Name whose limits a request counts against."""
    return principal.key_id or f"{principal.tenant}/{principal.name}"


def caller_of(scope: Mapping[str, Any]) -> str:
    """Name whose limits a request counts against; strangers have none of their own."""
    found = scope.get("state", {}).get(PRINCIPAL)
    return caller(found) if found else ""
