"""Bounds what the server of a remote agent may show: it is not trusted.

An answer beyond them ends the call. So do sign-in addresses that are not of the web: other programs
make links of these. Kinds of requests are checked where the wire is decoded.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from outlast.core.event import Event
from outlast.core.instant import EPOCH
from outlast.core.json_text import JsonRefused, read_json
from outlast.core.name import check_id
from outlast.core.record import Failure, UsageSum
from outlast.core.result import bounded
from outlast.core.visible import visible_line
from outlast.errors import InvalidName, InvalidServerAnswer
from outlast.session import Request, Result
from outlast.session.result import ResultStatus

MAX_ANSWER = 16 * 2**20
"""Bytes of one answer of the server, and of one event of its stream."""
MAX_EVENTS = 200_000
"""Events that are read to find the sign-ins of a session."""
MAX_REQUESTS = 50
"""Questions, and sign-ins, that a call has open."""
MAX_RELAYED = 1000
"""Questions and sign-ins that a call relays in all, one after the other; a few more at the end."""
MAX_ASKED = 4 * 2**20
"""Bytes of all questions that a call has open."""
MAX_URL = 8192
MAX_REASON = 10_000
"""Characters of a sentence in which the server says why its session failed."""
MAX_PATH = 100
"""Sessions there between the one that was started and the one that asks."""
CODE = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""The code of a failure."""
NO_END = ("running", "waiting")
"""Statuses that a session which is over does not have."""
LOOK_TIMEOUT = 60.0
"""Seconds for one look at a session; a server that needs more counts as away."""


class RequiredSignIn(Struct):
    """The fields of `authorization.required` as another server sends them."""

    request_id: str
    connection: str
    url: str
    expires_at: datetime
    principal: str = ""
    path: tuple[str, ...] = ()
    agent: str = ""


class EndedSignIn(Struct):
    """The fields of the events that end a sign-in."""

    request_id: str
    how: Literal["denied", "failed", "expired", "cancelled", "superseded"] = "denied"


Fields = TypeVar("Fields", RequiredSignIn, EndedSignIn)


def bounded_usage(told: UsageSum) -> UsageSum:
    """Return what another server says that a session used, within what sums can hold."""
    return UsageSum(*map(bounded, astuple(told)))


def check_requests(requests: Sequence[Request]) -> None:
    """Refuse questions that are too many, too large, or cannot be named."""
    check_number("questions", len(requests))
    if sum(len(msgspec.json.encode(request)) for request in requests) > MAX_ASKED:
        raise InvalidServerAnswer(
            f"the remote agent's questions are larger than {MAX_ASKED:,} bytes, the most that is"
            " relayed for a call"
        )
    for request in requests:
        check_path(request.path)
        named = (request.agent, request.tool, request.call_id, request.digest)
        check_names(request.request_id, *filter(None, named))
        check_json("the arguments in a question", request.args)
        if request.expires_at is not None:
            check_instant(request.expires_at)


def check_path(path: Sequence[str]) -> None:
    if len(path) > MAX_PATH:
        raise InvalidServerAnswer(
            f"the remote agent's request comes through more than {MAX_PATH} sessions"
        )
    check_names(*path)


def check_instant(at: datetime) -> None:
    """Refuse a time that says no zone, or is none of these days: dates are counted from it."""
    if at.utcoffset() is None or at < EPOCH:
        raise InvalidServerAnswer(f"the remote agent names a time that is none: {at.isoformat()}")


def check_json(what: str, value: Any) -> None:
    """Refuse a value that not every reader here reads alike: people approve it, models see it."""
    try:
        read_json(msgspec.json.encode(value))
    except JsonRefused as why:
        raise InvalidServerAnswer(f"{what} of the remote agent cannot be taken: {why}") from None


def check_end(result: Result[Any]) -> None:
    """Refuse a result of a session that is over, if it is none."""
    if result.status in NO_END or result.status not in get_args(ResultStatus):
        raise InvalidServerAnswer(
            "the remote agent's session is over, and its result is:"
            f" {visible_line(result.status[:100])!r}"
        )
    check_json("the answer", result.output)


def failure_of(error: Failure) -> Failure:
    """Return why a session there failed: codes are counted, and sentences are told to a model."""
    code = error.code if CODE.fullmatch(error.code) else "REMOTE_FAILED"
    return Failure(code, error.message[:MAX_REASON], error.hint[:MAX_REASON])


def sign_in_of(data: Mapping[str, Any]) -> RequiredSignIn:
    """Return a sign-in that may be relayed."""
    sign_in = fields(data, RequiredSignIn)
    check_path(sign_in.path)
    check_names(sign_in.request_id, sign_in.connection)
    check_names(*filter(None, (sign_in.principal, sign_in.agent)))
    check_instant(sign_in.expires_at)
    if not is_web_address(sign_in.url):
        raise InvalidServerAnswer(
            "the remote agent names an address for signing in that is none of the web, which"
            f" begins with https:// or http://: {visible_line(sign_in.url[:100])!r}"
        )
    return sign_in


def sign_in_end_of(data: Mapping[str, Any]) -> EndedSignIn:
    return fields(data, EndedSignIn)


def fields(data: Mapping[str, Any], kind: type[Fields]) -> Fields:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise InvalidServerAnswer(f"an event of the remote agent cannot be read: {error}") from None


def check_number(what: str, number: int) -> None:
    if number > MAX_REQUESTS:
        raise InvalidServerAnswer(
            f"the remote agent has more than {MAX_REQUESTS} {what} open, the most that is relayed"
            " for a call"
        )


def check_relayed(number: int) -> None:
    if number > MAX_RELAYED:
        raise InvalidServerAnswer(
            f"the remote agent has asked more than {MAX_RELAYED:,} times, the most that is relayed"
            " for a call"
        )


def check_event(event: Event) -> None:
    """Refuse an event that not every surface here can show."""
    check_names(*filter(None, (event.type, event.lane, event.turn, event.call_id)))
    check_instant(event.at)
    check_json(f"an event {event.type}", event.data)
    if event.type == "authorization.required":
        sign_in_of(event.data)


def check_events(number: int) -> None:
    if number > MAX_EVENTS:
        raise InvalidServerAnswer(
            f"the stream of the remote agent's session has more than {MAX_EVENTS:,} events, the"
            " most that is read"
        )


def check_names(*names: str) -> None:
    for name in names:
        try:
            check_id("name from the remote agent", name)
        except InvalidName as error:
            raise InvalidServerAnswer(error.message) from None


def is_web_address(url: str) -> bool:
    """Whether a text is an address of the web, all of it visible."""
    if len(url) > MAX_URL or " " in url or visible_line(url) != url:
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
