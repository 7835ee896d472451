"""Where the server is and what opens it, checked before anything is sent.

No error repeats what was given: a URL may carry a password, and a token is a secret.
"""

import re
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from outlast.errors import InvalidInput, InvalidUrl
from outlast.net.address import check_parts

TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")
"""The characters of a bearer token, by RFC 6750."""


def check_server(url: Any) -> str:
    """Return the address of a server without its last slash, if it can be one."""
    if not isinstance(url, str):
        raise InvalidUrl("a server's address is a text: http://localhost:8000")
    try:
        parts = urlsplit(url)
        check_parts(url, parts)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        raise InvalidUrl("this is no address of a server: write http://localhost:8000") from None
    if parts.query:
        raise InvalidUrl("a server's address ends before the ?")
    return url.rstrip("/")


def check_secret(token: Any) -> str | None:
    """Return a token that can stand in a header, or None where none was given."""
    if token is None:
        return None
    if token == "":
        raise InvalidInput("the token is empty: is what it was read from set?")
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise InvalidInput(
            "a token is letters, digits and ._~+/=- without blanks or line breaks; "
            "was it read from a file with the end of the line?"
        )
    return token


def segment(name: str) -> str:
    """Return a name as one part of a path; dots would lead out of it."""
    return quote(name, safe="").replace(".", "%2E")
