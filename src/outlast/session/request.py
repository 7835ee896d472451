"""A session's requests to humans, as callers see them."""

from datetime import datetime
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.core.record import Option
from outlast.store import RequestInfo

RequestKind = Literal["approval", "question", "interrupted"]


class Request(Struct, frozen=True, kw_only=True):
    """A question to a human. `tool`, `call_id` and `args` are the call that it is about.

    Where a child asks, `path` leads to it through the sessions between.
    """

    request_id: str
    kind: RequestKind
    prompt: str
    options: tuple[Option, ...]
    allow_freeform: bool
    session_id: str
    tool: str = ""
    call_id: str = ""
    args: Any = None
    digest: str = ""
    expires_at: datetime | None = None
    path: tuple[str, ...] = ()
    agent: str = ""


def request_of(info: RequestInfo) -> Request:
    """Return a request of the store as users know it."""
    asked = msgspec.json.decode(info.data, type=r.RequestOpened)
    return Request(
        request_id=asked.request_id,
        kind=cast(RequestKind, asked.kind),
        prompt=asked.prompt,
        options=asked.options,
        allow_freeform=asked.allow_freeform,
        session_id=info.session_id,
        tool=asked.tool,
        call_id=asked.call_id,
        args=msgspec.json.decode(asked.args) if asked.args else None,
        digest=asked.digest,
        expires_at=date_of(asked.expires_at) if asked.expires_at else None,
        path=asked.path,
        agent=asked.agent or info.agent,
    )
