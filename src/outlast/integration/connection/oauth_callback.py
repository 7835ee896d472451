"""Somebody comes back from signing in: what they bring, and how that can end."""

from __future__ import annotations

from typing import Literal

from outlast.integration.connection.redacted import Redacted

Ending = Literal[
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
"""completed: the tool goes on. denied: they said no. failed: the provider did. again: something
went wrong on the way, and the same link can be opened again. expired, used: the link is too old,
or was used. closed: nobody waits any more. mixed_up: it comes from another provider. stranger: it
is brought by somebody else than it was asked of. anonymous: by nobody knows whom, where people are
known. unknown: no such sign-in was ever begun."""


class OAuthCallback(Redacted, frozen=True):
    """What is in the address; `tenant` and `principal` are who brings it.

    None is where nobody knows such things; where people are known, a `principal` of "" is nobody.
    """

    state: str
    code: str = ""
    error: str = ""
    issuer: str = ""
    tenant: str | None = None
    principal: str | None = None
