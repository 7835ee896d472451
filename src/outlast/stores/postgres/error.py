"""The meaning of PostgreSQL's errors: try again, ask on another connection, or raise one of ours.

The driver's text about a connection is cleaned of the password before it is repeated.
"""

import psycopg
from psycopg.conninfo import conninfo_to_dict

from outlast.errors import (
    OutlastError,
    StoreCorrupt,
    StoreError,
    StoreFromTheFuture,
    StoreFull,
    StoreUnavailable,
)

# Two transactions conflicted: a deadlock, a serialization failure, the same new key (the second
# finds it when it looks again), or a lock that was not to be had in time.
PASSING = {"40001", "40P01", "23505", "55P03"}
DISK_FULL = "53100"
# Errors that the same statement may not meet a moment later: a time limit of the server's, an
# administrator's cancel, locks for longer than we try, too little memory, a disk that is away.
FOR_NOW = ("25P04", "40001", "40P01", "53", "55P03", "57", "58000", "58030")
UNREADABLE = ("XX001", "XX002")
# The schema is not what the version table says.
MISSING = ("3F000", "42P01")
# A function or a column is missing that was there when this process looked at the version.
CHANGED = ("42883", "42703")
# The words of a server that will accept connections before long: it is starting, or has no room
# now. For a connection that was not opened the driver gives these words and no code.
SOON = (
    "starting up",
    "not yet accepting",
    "too many clients",
    "too many connections for",  # a role, a database
    "remaining connection slots",
)
DENIED = ("28", "42501", "3D000")
READ_ONLY = "25006"


class ConnectionLost(StoreUnavailable):
    """The connection went away; what was under way may or may not have been done."""


class ServerAway(StoreUnavailable):
    """No connection could be opened."""


class ServerBusy(ServerAway):
    """The server says that it will accept connections before long."""


def state_of(error: BaseException) -> str:
    """Return PostgreSQL's own code for an error, or nothing for one without."""
    return getattr(error, "sqlstate", None) or ""


def is_passing(error: BaseException) -> bool:
    """Whether the same again may succeed, on the same connection."""
    return state_of(error) in PASSING


def is_put_off(error: BaseException) -> bool:
    """Whether a deferred constraint failed at COMMIT: none of them is ours, so it is the tool's."""
    return state_of(error).startswith(("23", "P0"))


def is_of_the_connection(error: BaseException) -> bool:
    """Whether the connection or the server is lost, whatever was asked."""
    if isinstance(error, ConnectionLost):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = state_of(error)
    if not state:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    # 08: connection; 57P01-05: the server stops, has crashed or is starting; 53300: it has no room
    # for connections. 25P03 and 57014 concern the one statement only.
    return state.startswith("08") or state in {"57P01", "57P02", "57P03", "57P05", "53300"}


def is_busy(error: psycopg.Error) -> bool:
    """Whether a server that refused a connection says that it will accept one before long."""
    return any(words in str(error) for words in SOON)


def lost(label: str, cause: str = "") -> ConnectionLost:
    detail = f" ({cause})" if cause else ""
    return ConnectionLost(
        f"the connection to the {label} was lost{detail}; it is tried again", store=label
    )


def closed() -> StoreUnavailable:
    """Return the error for what is asked of a store that was closed."""
    return StoreUnavailable("this store was closed; call migrate() to open it again")


def unreachable(error: psycopg.Error, conninfo: str, label: str) -> ServerAway:
    """Return the error for a connection that could not be opened."""
    said = " ".join(str(error).split())
    password = conninfo_to_dict(conninfo).get("password")
    # The driver repeats the connection's words in some of its errors.
    if password:
        said = said.replace(str(password), "***")
    if is_busy(error):
        return ServerBusy(
            f"the {label} takes no connection now ({said}); it does when it has started, or when"
            " others close theirs: see max_connections if that goes on",
            store=label,
            retry=True,
        )
    return ServerAway(
        f"the {label} cannot be reached ({said}); check that it runs and that the URL is right",
        store=label,
    )


def explain(error: psycopg.Error, label: str) -> OutlastError:
    """Return the error that says what happened, and what to do about it."""
    state = state_of(error)
    said = f"{state}: {error.diag.message_primary}" if state else type(error).__name__
    if state in UNREADABLE or state in MISSING:
        return StoreCorrupt(
            f"data in the {label} cannot be read ({said}); restore it from a backup",
            store=label,
        )
    if state in CHANGED:
        return StoreFromTheFuture(
            f"the {label} was changed while this process was at work ({said}), by a newer Outlast"
            " as it seems; start this process again with that version",
            store=label,
        )
    if state == DISK_FULL:
        return StoreFull(
            f"there is no room to write to the {label} ({said}); nothing was lost: free some"
            " space on its disk and go on",
            store=label,
        )
    if state == READ_ONLY:
        return StoreUnavailable(
            f"the {label} takes no writes ({said}): it is a standby, or was made read-only; nothing"
            " was lost: name the primary, or let it take writes again",
            store=label,
        )
    if state.startswith(DENIED):
        return StoreUnavailable(
            f"the {label} does not let this user in or write ({said}); check the URL and the"
            " user's rights",
            store=label,
        )
    if is_of_the_connection(error):
        return lost(label, said)
    if state.startswith(FOR_NOW):
        return StoreUnavailable(
            f"the {label} did not do what it was asked for ({said}); ask again, and look at its"
            " time limits and its load if that goes on",
            store=label,
        )
    return StoreError(f"PostgreSQL refused: {said}", store=label)
