"""`outlast answer`: what a human says to a request."""

from typing import Annotated, Any

import typer

from outlast.cli.command.send import show_receipt
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AppName,
    AsJson,
    Principal,
    StoreUrl,
    note_idleness,
    open_place_or_app,
    person,
)
from outlast.cli.terminal.output import error_out
from outlast.cli.terminal.run import command
from outlast.core.json_text import JsonRefused, read_object
from outlast.errors import UnknownRequest
from outlast.session import request_of
from outlast.session.request import request_text


@command
async def answer(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="The request's id: req_…")],
    option: Annotated[
        str | None, typer.Argument(metavar="OPTION", help="One of its options: approve, deny, …")
    ] = None,
    text: Annotated[str | None, typer.Option(help="An answer in words, or a reason.")] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Approve the call with these arguments.")
    ] = None,
    principal: Principal = None,
    app: AppName = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Answer an open request of any session.

    For a tool with rules for its approvers, --app says in which app these are.

    Example: outlast answer req_024ee360 approve --args '{"order": 17, "cents": 300}'
    """
    changed = None if args is None else parse_arguments(args)
    async with open_place_or_app(store, app) as place:
        asked = await place.store.listing.request(request)
        if asked is None:
            raise UnknownRequest(f"no session ever asked {request}", request=request)
        session = await place.session(asked.session_id)
        receipt = await session.answer(
            request, option, text=text, args=changed, principal=person(principal)
        )
        if not as_json:
            error_out(f"to: {request_text(request_of(asked))}", "dim")
        await note_idleness(place.store, as_json=as_json)
        show_receipt(receipt, as_json=as_json, did="answered")


def parse_arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments from JSON, or say that it is none."""
    try:
        return read_object(text.encode(errors="surrogateescape"))
    except JsonRefused as why:
        raise typer.BadParameter(f"--args takes a JSON object: {why}") from None
