"""A session's requests to humans, as callers see them, and as people read them.

Owns how a request is shown, whole and unambiguous; an answer to it is checked in `answer.py`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from outlast.agents.runtime.json_value import to_json
from outlast.core import record as r
from outlast.core.instant import date_of
from outlast.core.json_text import JsonRefused, parse_json
from outlast.core.visible import escaped, unambiguous, unambiguous_name
from outlast.store import RequestInfo

UNREADABLE = "This request cannot be read."
UNREADABLE_ARGS = "(The arguments are not JSON that can be read, and are shown as text.)"

RequestKind = Literal["approval", "question", "interrupted", "budget"]


class Request(Struct, frozen=True, kw_only=True):
    """A question to a human. `tool`, `call_id` and `args` are the call that it is about.

    If a child asks, `path` has the ids of the sessions that lead to it.
    """

    request_id: str
    kind: RequestKind
    prompt: str
    options: tuple[r.Option, ...]
    allow_freeform: bool
    session_id: str
    tool: str = ""
    call_id: str = ""
    args: Any = None
    digest: str = ""
    expires_at: datetime | None = None
    path: tuple[str, ...] = ()
    agent: str = ""


def id_of(request: Request | str) -> str:
    """Return the id of a request that is given as it was listed, or by its id."""
    return request.request_id if isinstance(request, Request) else request


def request_of(info: RequestInfo) -> Request:
    """Return a request of the store as users know it.

    One that cannot be read is shown as the text that it is, with a word about it: a list has to
    show all others.
    """
    try:
        asked = msgspec.json.decode(info.data, type=r.RequestOpened)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        asked = r.RequestOpened(
            request_id=info.request_id, kind=info.kind, prompt=UNREADABLE, args=info.data
        )
    args, prompt = None, asked.prompt
    if asked.args:
        try:
            args = parse_json(asked.args)
        except JsonRefused:
            # Shown all the same: somebody has to be able to deny it.
            args, prompt = asked.args, f"{prompt} {UNREADABLE_ARGS}"
    return Request(
        request_id=asked.request_id,
        kind=cast(RequestKind, asked.kind),
        prompt=prompt,
        options=asked.options,
        allow_freeform=asked.allow_freeform,
        session_id=info.session_id,
        tool=asked.tool,
        call_id=asked.call_id,
        args=args,
        digest=asked.digest,
        expires_at=date_of(asked.expires_at) if asked.expires_at else None,
        path=asked.path,
        agent=asked.agent or info.agent,
    )


def call_text(tool: str, args: Any) -> str:
    """Return a call on one line, with all its arguments, so that it can be read in one way only."""
    if not isinstance(args, Mapping):
        return f"{unambiguous_name(tool)}({json_text(args)})"
    given = (f"{argument_name(name)}={json_text(value)}" for name, value in args.items())
    return f"{unambiguous_name(tool)}({', '.join(given)})"


def argument_name(name: Any) -> str:
    """Return an argument's name; one that could be read as more than a name is quoted."""
    text = str(name)
    # A name with a comma or an equals sign in it could pass for another argument.
    return unambiguous_name(text) if text.isidentifier() else json_text(text)


def json_text(value: Any) -> str:
    return escaped(to_json(value))


def request_lines(request: Request) -> list[str]:
    """Return what is asked, line by line; the whole call that it is about ends the last one."""
    # Each line by itself: a line end within the call would make two things of one.
    *lines, last = [unambiguous(line) for line in request.prompt.split("\n")]
    call = f" {call_text(request.tool, request.args)}" if request.args is not None else ""
    return [*lines, last + call]


def request_text(request: Request) -> str:
    """Return the same on one line: the line ends of the prompt are escaped."""
    return "\\n".join(request_lines(request))
