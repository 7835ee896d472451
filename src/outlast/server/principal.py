"""Who sends a request, and what that lets them do."""

from __future__ import annotations

from msgspec import Struct

READ = "read"
SEND = "send"
APPROVE = "approve"
INTERNALS = "internals"
ADMIN = "admin"

SCOPES = {
    READ: "read sessions, their streams, open requests and lanes",
    SEND: "start sessions, send messages, cancel, end and retry",
    APPROVE: "answer requests",
    INTERNALS: "see internal events, workers and metrics",
    ADMIN: "erase sessions, and all of the above",
}


class Principal(Struct, frozen=True):
    """Somebody known: whose data they reach, what they are called, and what they may do.

    `key_id` is that of the key that they came with, if it was one of the store's.
    """

    tenant: str
    name: str
    scopes: frozenset[str] = frozenset()
    key_id: str = ""

    def may(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes


LOCAL = Principal("default", "local", frozenset(SCOPES))
"""Whoever is on this machine, where nobody asks for a key."""
