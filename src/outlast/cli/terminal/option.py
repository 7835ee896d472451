"""Options that several commands share: the store or app, the user, and words out of a few.

Looking never creates: a file that is missing, or belongs to another program, is an error.
"""

import getpass
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import unquote, urlsplit

import typer

from outlast.app import DEFAULT_STORE, Outlast
from outlast.cli.terminal.loading import load_app
from outlast.cli.terminal.output import error_out
from outlast.clock import Clock
from outlast.core.instant import read_instant
from outlast.errors import InvalidInput, StoreUnavailable
from outlast.store import Store
from outlast.stores.sqlite.migration import probe

Word = TypeVar("Word", bound=StrEnum)


def one_of(kind: type[Word]) -> Callable[[str], Word]:
    """Return a parser for the members of an enum; its error lists them."""

    def read(text: str) -> Word:
        try:
            return kind(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is none of: {', '.join(kind)}") from None

    return read


Principal = Annotated[
    str | None, typer.Option("--principal", help="Who you are; by default your login.")
]


def person(principal: str | None) -> str:
    """Return the given name, or else the login."""
    if principal is not None:
        return principal
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


FailureCode = Annotated[
    str | None, typer.Option("--code", help="Only those that failed with this code.")
]
FailedInQueue = Annotated[
    str | None,
    typer.Option("--queue", help="Only those that failed in sessions of this queue."),
]
FailedSince = Annotated[
    str | None,
    typer.Option(
        "--since", help="Only those that failed since: 2026-01-31T12:00:00Z, or 30m, 2h, 1d ago."
    ),
]

_AGO = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def past_of(text: str | None) -> datetime | timedelta | None:
    """Return an instant, or how long ago, that was given on the command line."""
    if text is None:
        return None
    if ago := _AGO.fullmatch(text):
        return timedelta(**{_UNITS[ago[2]]: float(ago[1])})
    try:
        return read_instant("--since", text)
    except InvalidInput as error:
        raise typer.BadParameter(f"{error}, or so long ago: 2h", param_hint="'--since'") from None


Timeout = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        help="Wait for so long at most: 30s, 5m, 2h; then end with 3.",
        show_default=False,
    ),
]


def span_of(text: str | None, option: str = "--timeout") -> timedelta | None:
    """Return a length of time that was given on the command line; a number alone is seconds."""
    if text is None:
        return None
    found = _AGO.fullmatch(text if text[-1:].isalpha() else f"{text}s")
    if not found:
        raise typer.BadParameter(
            f"{text!r} is no length of time such as 30s, 5m, 2h", param_hint=f"'{option}'"
        )
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


NAME_YOURS = "name yours with --store or OUTLAST_STORE"


def one_place(ctx: typer.Context, value: str | None) -> str | None:
    """Refuse a store beside an app or a server, whichever of both is read first."""

    def is_given(name: str) -> bool:
        source = ctx.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    if is_given("store"):
        for name, what in {"app": "an app", "url": "a server"}.items():
            if is_given(name):
                raise typer.BadParameter(f"{what} has a store of its own: leave --store away")
    return value


StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        envvar="OUTLAST_STORE",
        help="Where the sessions are kept.",
        callback=one_place,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsRaw = Annotated[
    bool,
    typer.Option(
        "--raw", help="In a pipe: texts as they are, with controls and what cannot be seen."
    ),
]
AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        help="An app: its store, and its rules for approvers.",
        callback=one_place,
    ),
]
StoreOfApp = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:APP", help="An app: its store is meant.", callback=one_place
    ),
]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id: ses_…")]
SessionOrMany = Annotated[
    str | None,
    typer.Argument(
        metavar="SESSION", help="The session's id: ses_…; without it, options choose many."
    ),
]

__all__ = [
    "DEFAULT_STORE",
    "AppName",
    "AsJson",
    "AsRaw",
    "SessionId",
    "SessionOrMany",
    "StoreOfApp",
    "StoreUrl",
    "Timeout",
    "note_idleness",
    "one_place",
    "open_place",
    "open_place_or_app",
    "span_of",
]


@asynccontextmanager
async def open_place(url: str) -> AsyncIterator[Outlast]:
    """Open a store that exists, to read and to send; no work is done here."""
    check_exists(url)
    app = Outlast(store=url, worker=None)
    await check_schema(app.store)
    async with app:
        yield app


@asynccontextmanager
async def open_place_or_app(url: str, app: str | None) -> AsyncIterator[Outlast]:
    """Open a store to look and to answer, or an app's; no work is done here.

    An app's store is its own to make.
    """
    if app is None:
        async with open_place(url) as place:
            yield place
        return
    own = load_app(app)
    own.settings = None
    async with own:
        yield own


def check_exists(url: str) -> None:
    """Refuse a place where nothing of Outlast's can be found; nothing there is touched."""
    parts = urlsplit(url)
    if parts.scheme == "memory":
        raise StoreUnavailable(f"a memory:// store exists only in its own process; {NAME_YOURS}")
    if parts.scheme == "sqlite" and parts.path:
        check_file(Path(unquote(parts.path.removeprefix("/"))))


def check_file(path: Path) -> None:
    if not path.exists():
        raise missing("there is no database at", path)
    if path.is_file() and path.stat().st_size == 0:
        raise missing("there is nothing in", path)
    if path.is_file() and not is_ours(path):
        raise missing("there is nothing of Outlast's in", path)


def missing(what: str, path: Path) -> StoreUnavailable:
    place = path.absolute()
    return StoreUnavailable(f"{what} {place}; {NAME_YOURS}", path=str(place))


def is_ours(path: Path) -> bool:
    """Whether Outlast has made its mark on a database.

    Without a log beside it, `immutable` makes sure that none is made to look.
    """
    has_log = path.with_name(path.name + "-wal").exists()
    try:
        mark, _ = probe(path, Clock(), "mode=ro" if has_log else "mode=ro&immutable=1")
    except sqlite3.Error:
        return True  # opening it reports what is wrong, before anything is written
    return mark != 0


async def check_schema(store: Store) -> None:
    """Refuse to make a schema in a database of a server: only there can it be asked first."""
    is_there = getattr(store, "is_there", None)
    if is_there and not await is_there():
        raise StoreUnavailable(f"there is nothing of Outlast's in {store!r}; {NAME_YOURS}")


async def note_idleness(store: Store, *, as_json: bool) -> None:
    """Warn if no worker is there to do what was asked."""
    if not as_json and not await store.work.workers():
        error_out("note: no worker is running on this store now; it waits until one is")
