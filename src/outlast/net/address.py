"""The URLs and addresses that a request to a configured URL may reach.

Checks texts only: it resolves no name and opens no connection. An address that is neither public
nor allowed by `allow_private` is refused; addresses that no webhook needs are always refused.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from unicodedata import category
from urllib.parse import SplitResult, urlsplit

from outlast.errors import AddressRefused, InvalidUrl

LONGEST = 2048
SCHEMES = ("http", "https")

METADATA = tuple(
    map(
        ip_network,
        (
            "168.63.129.16",  # Azure
            "100.100.100.200",  # Alibaba
            "192.0.0.192",  # Oracle, classic
            "fd00:ec2::/32",  # AWS: instance metadata, pod identities, names, time
            "fd20:ce::254",  # Google
            "fd00:c1::a9fe:a9fe",  # Oracle
            "fd00:42::42",  # Scaleway
            "fd00:a9fe:a9fe::1",  # Akamai
            "fd00:100::100:200",  # Alibaba
        ),
    )
)
"""The metadata services of clouds, which serve secrets; some look public, others private. The
link-local ones (169.254.0.0/16, fe80::/10) are never called anyway."""

NOT_GLOBAL = tuple(map(ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))
"""Reserved after this Python's tables were made, or missing from them."""

GLOBAL_V6 = ip_network("2000::/3")
EMBEDS_V4 = (ip_network("64:ff9b::/96"), ip_network("::/96"), ip_network("::ffff:0:0:0/96"))
"""Prefixes before an IPv4 address in the last four bytes: NAT64, the old IPv4-compatible, and
IPv4-translated."""


def check_url(url: str, *, allow_private: bool = False) -> None:
    """Refuse a URL that cannot be called, before anything is resolved.

    Its text is never part of the error: a URL may carry a secret.
    """
    try:
        parts = urlsplit(url)
        check_parts(url, parts)
    except (AttributeError, TypeError, ValueError):  # the first two: it is no text at all
        raise InvalidUrl("this is not a valid URL: write https://host/path") from None
    host = parts.hostname or ""
    if "%" in host:
        raise InvalidUrl("the host of a URL must not have a zone or an escape in it")
    if is_local_name(host) and not allow_private:
        raise refused(host)
    if is_address(host):
        check_address(host, allow_private=allow_private)


def check_parts(url: str, parts: SplitResult) -> None:
    if len(url) > LONGEST or any(c <= " " or c == "\x7f" or c == "\\" for c in url):
        raise InvalidUrl(f"a URL must have at most {LONGEST} characters, without blanks")
    if parts.scheme not in SCHEMES:
        raise InvalidUrl("a URL has to begin with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise InvalidUrl("a URL must not have a user or a password in it")
    if not parts.hostname or parts.port == 0:
        raise InvalidUrl("a URL needs a host, and its port, if any, has to be over 0")
    if parts.fragment:
        raise InvalidUrl("a URL must not have a # in it")
    if not parts.hostname.isascii() and not all(map(is_of_a_name, parts.hostname)):
        raise InvalidUrl("the host of a URL has to consist of letters, digits and hyphens")


def is_of_a_name(character: str) -> bool:
    """Say whether a host name may contain a character, in any script."""
    return character in "-." or category(character)[0] in "LMN"


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_local_name(host: str) -> bool:
    name = host.rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost")


def check_address(address: str, *, allow_private: bool = False) -> None:
    """Refuse an address unless it is public, or private and those are allowed.

    One with a zone (`fd00::1%eth0`) is refused: it names an interface of this machine, and no
    address with a zone equals the same one in a list.
    """
    kind = "never" if "%" in address else kind_of(ip_address(address))
    if kind == "never" or (kind == "private" and not allow_private):
        raise refused(address, never=kind == "never")


def refused(address: str, *, never: bool = False) -> AddressRefused:
    return AddressRefused(
        f"{address} is not a public address"
        + ("" if never else "; `allow_private=True` allows those of your own network"),
        address=address,
    )


def kind_of(ip: IPv4Address | IPv6Address) -> str:
    """Return whether an address is `public`, `private`, or `never` to be called."""
    # Before `allow_private`, which is for one's own network and not for its secrets.
    if any(ip in network for network in METADATA):
        return "never"
    return kind_of_v4(ip) if isinstance(ip, IPv4Address) else kind_of_v6(ip)


def kind_of_v4(ip: IPv4Address) -> str:
    if ip.packed[0] == 0 or ip.is_link_local or ip.is_multicast or ip.is_reserved:
        return "never"
    return "public" if ip.is_global and not is_set_apart(ip) else "private"


def kind_of_v6(ip: IPv6Address) -> str:
    if ip.is_loopback:
        return "private"
    if not ip.is_unspecified and (embedded := embedded_v4(ip)):
        return kind_of(embedded)
    if ip in ip_network("fc00::/7"):
        return "private"
    is_public = ip in GLOBAL_V6 and ip.is_global and not is_set_apart(ip) and not is_isatap(ip)
    return "public" if is_public else "never"


def embedded_v4(ip: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that packets for this one are forwarded to."""
    if ip.ipv4_mapped or ip.sixtofour:
        return ip.ipv4_mapped or ip.sixtofour
    if any(ip in network for network in EMBEDS_V4):
        return IPv4Address(ip.packed[-4:])
    return None


def is_isatap(ip: IPv6Address) -> bool:
    return ip.packed[8:12] in (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


def is_set_apart(ip: IPv4Address | IPv6Address) -> bool:
    return any(ip in network for network in NOT_GLOBAL)
