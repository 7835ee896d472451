"""Where a request comes from, as far as the connection itself tells: which host, which name.

Believes no header that a caller could have written, and takes one that says that the request was
passed on as a sign that the caller is somewhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope

FORWARDED = re.compile(
    rb"(?:x-)?(?:original-)?forward(?:ed|er)(?:-.*)?|(?:.*-)?via|cdn-loop|x-varnish"
    rb"|(?:x-)?(?:original|rewrite|proxy|proxied|real|request-start|queue-start)(?:-.*)?"
    rb"|x-(?:scheme|url-scheme|https?|host|remote-addr)|(?:x-)?(?:front-end-https|ssl-.*)"
    rb"|x-envoy-.*|x-arr-.*"
    rb"|(?:.*-)?(?:client|connecting|socket|source|remote|proxyuser|real|user)-?ip(?:v6)?"
    rb"|(?:cf|fly|fastly|x-appengine|x-azure|x-vercel|x-nf|x-akamai|akamai|tailscale|x-goog)-.*"
    rb"|x-amzn-trace-id|x-amz-cf-id|x-cloud-trace-context"
)
"""Headers by which proxies, load balancers and networks say that they pass a request on."""
HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(?::\d{1,5})?")


def headers(scope: Scope, name: bytes) -> list[str]:
    """Return all values of a header."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def host_of(scope: Scope) -> str:
    """Return the name in the Host header without its port, or nothing if it makes no sense."""
    given = headers(scope, b"host")
    found = HOST.fullmatch(given[0].strip().lower()) if len(given) == 1 else None
    return found["name"].removesuffix(".") if found else ""


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine, and none but it."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine, over an address that no other can reach."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server or is_forwarded(scope):
        return False
    return is_loopback(client[0]) and is_loopback(server[0])


def is_forwarded(scope: Scope) -> bool:
    """Whether a request says that it was passed on, by any of the names that are known for it."""
    return any(FORWARDED.fullmatch(key.lower()) for key, _ in scope["headers"])


def is_allowed(host: str, patterns: Iterable[str]) -> bool:
    """Whether a name fits one of the patterns: `api.example.com`, `*.example.com` or `*`."""
    return any(
        pattern == "*"
        or host == pattern.lower()
        or (pattern.startswith("*.") and host.endswith(pattern[1:].lower()))
        for pattern in patterns
    )


def path_of(scope: Scope) -> str:
    """Return the path below where the server is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    below = path.removeprefix(root) if path.startswith(root + "/") else path
    return below or "/"
