"""The principal of a request, and the scopes that say what it may do."""

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
    """An authenticated caller: its tenant, its name and its scopes.

    `key_id` is that of the key that they came with, if it was one of the store's.
    """

    tenant: str
    name: str
    scopes: frozenset[str] = frozenset()
    key_id: str = ""

    def may(self, scope: str) -> bool:
        return scope in self.scopes or ADMIN in self.scopes


LOCAL = Principal("default", "local", frozenset(SCOPES))
"""The caller on this machine, where no key is required."""
