"""Where sessions are kept: the options of commands that need no agent's code.

Looking never creates: a file that is not there is an error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from holdfast.app import DEFAULT_STORE, Holdfast
from holdfast.cli.loading import load_app
from holdfast.cli.output import error_out
from holdfast.errors import StoreUnavailable
from holdfast.store import Store

StoreUrl = Annotated[
    str,
    typer.Option(
        "--store", metavar="URL", envvar="HOLDFAST_STORE", help="Where the sessions are kept."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AppName = Annotated[
    str | None,
    typer.Option(
        "--app", metavar="MODULE:APP", help="An app: its store, and its rules for approvers."
    ),
]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id: ses_…")]

__all__ = [
    "DEFAULT_STORE",
    "AppName",
    "AsJson",
    "SessionId",
    "StoreUrl",
    "note_idleness",
    "open_place",
    "open_place_or_app",
]


@asynccontextmanager
async def open_place(url: str) -> AsyncIterator[Holdfast]:
    """Open a store that exists, to read and to send; no work is done here."""
    check_exists(url)
    app = Holdfast(store=url, worker=None)
    await check_schema(app.store)
    async with app:
        yield app


@asynccontextmanager
async def open_place_or_app(url: str, app: str | None) -> AsyncIterator[Holdfast]:
    """Open a store to look and to answer, or an app's; no work is done here."""
    if app is None:
        async with open_place(url) as place:
            yield place
        return
    own = load_app(app)
    own.settings = None
    async with own:
        yield own


def check_exists(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return
    path = Path(unquote(parts.path.removeprefix("/")))
    if parts.path and (not path.exists() or (path.is_file() and path.stat().st_size == 0)):
        what = "there is no database at" if not path.exists() else "there is nothing in"
        raise StoreUnavailable(
            f"{what} {path.absolute()}; name yours with --store or HOLDFAST_STORE",
            path=str(path.absolute()),
        )


async def check_schema(store: Store) -> None:
    """Refuse to make a schema in a database of a server: only there can it be asked first."""
    is_there = getattr(store, "is_there", None)
    if is_there and not await is_there():
        raise StoreUnavailable(
            f"there is nothing of Holdfast's in {store!r}; name yours with --store or"
            " HOLDFAST_STORE"
        )


async def note_idleness(store: Store, *, as_json: bool) -> None:
    """Say so if nobody is there to do what was asked."""
    if not as_json and not await store.workers():
        error_out("note: no worker is running on this store now; it waits until one is")
