"""Checks what authors give in definitions and settings: words, numbers, names, groups.

Every refusal is an `InvalidDefinition` that says what was expected. Times are in `instant.py`.
"""

import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar, get_args

from outlast.core.instant import LONGEST
from outlast.errors import InvalidDefinition

T = TypeVar("T")

MOST = 2**31 - 1
DEPLOYMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
LAST_PORT = 65_535
ADDRESS = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([\w.\-]*)):(\d{1,5})")
MOST_SECONDS = LONGEST.total_seconds()


def one_of(kind: Any, what: str, value: Any) -> Any:
    """Return a word, if it is one of those that a Literal names."""
    known = get_args(kind)
    if value not in known:
        raise InvalidDefinition(
            f"{what} has to be {', '.join(known[:-1])} or {known[-1]}, not {value!r}"
        )
    return value


def count_of(what: str, value: Any, least: int = 1) -> int:
    """Return a whole number, if it is not too small, and every database can keep it."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidDefinition(
            f"{what} has to be a whole number of {least} or more, not {value!r}"
        )
    if value > MOST:
        raise InvalidDefinition(f"{what} has to be at most {MOST:,}, not {value:,}")
    return value


def flag_of(what: str, value: Any) -> bool:
    """Return True or False, if it is one of them."""
    if not isinstance(value, bool):
        raise InvalidDefinition(f"{what} has to be True or False, not {value!r}")
    return value


def seconds_of(what: str, value: Any, *, or_none: bool = False) -> float:
    """Return a number or a timedelta as seconds; with `or_none` 0 is allowed."""
    value = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value >= 0 or (value == 0 and not or_none):
        least = "of 0 or more" if or_none else "over 0"
        raise InvalidDefinition(f"{what} has to be a number of seconds {least}, not {value!r}")
    if value > MOST_SECONDS:
        raise InvalidDefinition(f"{what} has to be at most a thousand years, not {value!r} seconds")
    return float(value)


def seconds_or_none(what: str, value: Any) -> float | None:
    """Return a number or a timedelta of 0 or more as seconds; None is for ever."""
    return None if value is None else seconds_of(what, value, or_none=True)


def listed(what: str, value: Any) -> list[Any]:
    """Return several things, if they are given as such."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidDefinition(f"{what} have to be given in a list, not {value!r}")
    return list(value)


def settings_of(kind: type[T], what: str, value: T | None) -> T | None:
    """Return settings, if they are of their kind, or none."""
    if value is not None and not isinstance(value, kind):
        raise InvalidDefinition(f"{what} has to be {kind.__name__}(…) or None, not {value!r}")
    return value


def group_of(kind: type[T], what: str, value: T) -> T:
    """Return a group of settings, if it is of its kind."""
    if not isinstance(value, kind):
        raise InvalidDefinition(f"{what} has to be {kind.__name__}(…), not {value!r}")
    return value


def names_of(what: str, value: Any) -> tuple[str, ...]:
    """Return several names; a text by itself is one."""
    is_several = isinstance(value, Sequence) and not isinstance(value, str)
    if not is_several or not all(isinstance(each, str) for each in value):
        raise InvalidDefinition(f"{what} have to be names in a sequence, not {value!r}")
    return tuple(value)


def deployment_of(what: str, value: Any) -> str:
    """Return the name of a deployment; an empty one is none."""
    if isinstance(value, str) and (not value or DEPLOYMENT.fullmatch(value)):
        return value
    raise InvalidDefinition(
        f"{what} has to be a name such as 2026-11-17.3: letters, digits and . _ + -, at most"
        f" 100, not {value!r}"
    )


def address_of(what: str, value: Any) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`; an IPv6 address is in brackets."""
    found = ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if not found or int(found[3]) > LAST_PORT:
        raise InvalidDefinition(
            f"{what} has to be HOST:PORT, as in 0.0.0.0:7070, 10.0.0.5:0 or [::]:7070,"
            f" not {value!r}"
        )
    return found[1] or found[2] or "", int(found[3])
