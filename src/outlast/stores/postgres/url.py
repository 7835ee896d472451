"""The URL of a store, taken apart without repeating a secret.

    postgresql://user:password@host/database?schema=outlast&direct=host:5432

`schema` is the store's own schema. `direct` is for a database behind a transaction pooler,
which the URL itself then names: a host and port (all else as in the URL) or a whole URL at
which the server is reached directly, or `none`. All other parameters are the driver's.
"""

import re
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from outlast.errors import UnsupportedStore

DEFAULT_SCHEMA = "outlast"
SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,49}")  # a longer one PostgreSQL would cut
RESERVED = re.compile(r"pg_|information_schema$|public$")
UNKNOWN_PARAMETER = re.compile(r'invalid URI query parameter: "(\w+)"')
HOST = re.compile(r"[\w.\-]+(:\d+)?")

# A dead connection must be noticed well within a lease, or everything would wait for it: a worker
# begins nothing new after two thirds of its lease.
DEFAULTS = {
    "application_name": "outlast",
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


class StoreAddress(NamedTuple):
    """How to reach the store. `direct` is empty if only a pooler can be reached."""

    database: str
    schema: str
    pooled: str
    direct: str

    def __repr__(self) -> str:
        return f"StoreAddress({self.label})"

    @property
    def label(self) -> str:
        """Name the store in errors and logs, without secrets."""
        return f"{self.database}, schema {self.schema}"

    @property
    def number(self) -> int:
        """Return the schema's number among advisory locks: two schemas have different ones."""
        digest = blake2b(f"outlast {self.schema}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") & 0x7FFF_FFFF


def read_url(url: str) -> StoreAddress:
    """Take a URL apart; errors name only what holds no secret."""
    parts = urlsplit(url)
    params = dict(parse_qsl(parts.query, keep_blank_values=True))
    schema = check_schema(params.pop("schema", DEFAULT_SCHEMA))
    direct = params.pop("direct", None)
    query = urlencode(params, quote_via=quote)  # libpq takes a plus for itself
    # Not by urlunsplit: where no host is named, which is the local socket, it loses the slashes.
    plain = f"{parts.scheme}://{parts.netloc}{parts.path}?{query}"
    settings = read_settings(plain)
    return StoreAddress(
        database=describe(settings),
        schema=schema,
        pooled=make_conninfo(**{**DEFAULTS, **settings}),
        direct=find_direct(direct, settings),
    )


def find_direct(direct: str | None, settings: dict[str, Any]) -> str:
    if direct is None:
        return make_conninfo(**{**DEFAULTS, **settings})
    if direct == "none":
        return ""
    if "://" in direct:
        return make_conninfo(**{**DEFAULTS, **read_settings(direct)})
    if not HOST.fullmatch(direct):
        raise UnsupportedStore(
            "the parameter direct of the store's URL is a host with its port, a percent-encoded"
            " URL, or none"
        )
    host, _, port = direct.partition(":")
    settings = {key: value for key, value in settings.items() if key not in ("hostaddr", "port")}
    return make_conninfo(**{**DEFAULTS, **settings, "host": host, "port": port or "5432"})


def read_settings(url: str) -> dict[str, Any]:
    try:
        return {key: value for key, value in conninfo_to_dict(url).items() if value is not None}
    except ProgrammingError as error:
        # The driver's own words may repeat the password, or what one that is not encoded was
        # taken for; they are not passed on.
        raise UnsupportedStore(problem_of(url, str(error))) from None


def problem_of(url: str, said: str) -> str:
    """Say what is wrong with a URL; a parameter is named where it cannot be of a password."""
    unknown = UNKNOWN_PARAMETER.search(said)
    if unknown and "@" not in unquote(urlsplit(url).query):
        return f"the store's URL has a parameter that PostgreSQL does not know: {unknown[1]}"
    return (
        "the store's URL cannot be read: write postgresql://user:password@host/database,"
        " with special characters percent-encoded"
    )


def check_schema(name: str) -> str:
    if not SCHEMA.fullmatch(name) or RESERVED.match(name):
        raise UnsupportedStore(
            f"{name!r} cannot be the store's schema: use up to 50 small letters, digits and _,"
            " and none of PostgreSQL's own names",
            schema=name,
        )
    return name


def describe(settings: dict[str, Any]) -> str:
    """Name the database without its user's secrets."""
    host = settings.get("host") or settings.get("hostaddr") or "the local socket"
    port = f":{settings['port']}" if settings.get("port") else ""
    return f"database {settings.get('dbname') or 'by default'} at {host}{port}"
