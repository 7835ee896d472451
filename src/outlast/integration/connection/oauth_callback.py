"""The callback of an OAuth provider: what it carries, and how it can end.

Needs no extra, unlike the flow in `oauth_flow.py`: the app and its server know these types.
"""

from typing import Literal

from outlast.integration.connection.connection import Redacted

SignInOutcome = Literal[
    "completed",
    "denied",
    "failed",
    "again",
    "expired",
    "used",
    "closed",
    "mixed_up",
    "stranger",
    "anonymous",
    "unknown",
]
"""How a callback ends.

completed: the tool goes on. denied: the user said no. failed: the provider refused. again: a
passing failure, the same link can be opened again. expired, used: the link is too old, or was used.
closed: no call waits any more. mixed_up: the callback is of another provider. stranger: a different
user completed the sign-in. anonymous: the app authenticates users, but this request had none.
unknown: no such sign-in was begun."""


class OAuthCallback(Redacted, frozen=True):
    """The parameters of the callback's address, and the user whose request it is.

    `tenant` and `principal` are None where the app does not authenticate users; where it does, a
    `principal` of "" is a request without a user.
    """

    state: str
    code: str = ""
    error: str = ""
    issuer: str = ""
    tenant: str | None = None
    principal: str | None = None
