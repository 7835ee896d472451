"""`outlast requests`: what people are asked, and what they say to it."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from outlast.app import Outlast
from outlast.cli.command.answer import parse_arguments
from outlast.cli.command.send import result_of, show_receipt, show_result
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AppName,
    AsJson,
    Principal,
    StoreUrl,
    note_idleness,
    one_of,
    open_place_or_app,
    person,
)
from outlast.cli.terminal.output import error_out, json_out, out, table
from outlast.cli.terminal.prompt import edit_arguments
from outlast.cli.terminal.request_screen import RequestScreen, until_left
from outlast.cli.terminal.run import command
from outlast.core.index import PEOPLE, RELAYED
from outlast.errors import UnknownRequest
from outlast.session import Request, request_of
from outlast.session.request import request_text

HEADERS = ("REQUEST", "SESSION", "AGENT", "KIND", "ASKS")


class RequestAction(StrEnum):
    """An action on a request."""

    approve = "approve"
    deny = "deny"
    edit = "edit"


@command
async def requests(
    action: Annotated[
        RequestAction | None,
        typer.Argument(
            metavar="ACTION", help="approve, deny or edit a request.", parser=one_of(RequestAction)
        ),
    ] = None,
    request: Annotated[
        str | None, typer.Argument(metavar="REQUEST", help="The request's id: req_…")
    ] = None,
    text: Annotated[str | None, typer.Option(help="A reason, for the agent.")] = None,
    args: Annotated[
        str | None, typer.Option(metavar="JSON", help="Edit: the arguments; else $EDITOR opens.")
    ] = None,
    principal: Principal = None,
    tenant: Annotated[str | None, typer.Option(help="Only those of this tenant.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 100,
    once: Annotated[bool, typer.Option("--once", help="Print the list and leave.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for what comes of it.")] = False,
    app: AppName = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int | None:
    """List open requests of all sessions, oldest first; on a terminal, live.

    There each has a number, and a line answers it: `approve 1`, `deny 2 too much`, `edit 3`, or
    `4 blue` for a question. Ctrl-C, Ctrl-D or `q` leaves.

    Example: outlast requests approve req_024ee360 --principal ann
    """
    who = person(principal)
    async with open_place_or_app(store, app) as place:
        if action is not None:
            if request is None:
                raise typer.BadParameter(f"say which request to {action}: req_…")
            changed = None if args is None else parse_arguments(args)
            return await answer(
                place, action, await find(place, request, tenant, agent),
                text=text, args=changed, principal=who, wait=wait, as_json=as_json,
            )  # fmt: skip
        if sys.stdin.isatty() and sys.stdout.isatty() and not (once or as_json):
            screen = RequestScreen(place, tenant=tenant, agent=agent, principal=who, limit=limit)
            return await until_left(screen)
        show(await place.requests(tenant=tenant, agent=agent, limit=limit), as_json=as_json)
    return None


def show(found: tuple[Request, ...], *, as_json: bool) -> None:
    if as_json:
        json_out([asdict(each) for each in found])
    elif found:
        table(HEADERS, [row(each) for each in found])
    else:
        out("no open requests")


def row(request: Request) -> tuple[str, ...]:
    return (
        request.request_id,
        request.session_id,
        request.agent,
        request.kind,
        request_text(request),
    )


async def find(place: Outlast, request_id: str, tenant: str | None, agent: str | None) -> Request:
    """Return a request of a human, open or not; another tenant's or agent's is not there."""
    info = await place.store.listing.request(request_id)
    is_wanted = info is not None and info.kind in (*PEOPLE, RELAYED)
    for wanted, found in ((tenant, info and info.tenant), (agent, info and info.agent)):
        is_wanted = is_wanted and wanted in (None, found)
    if info is None or not is_wanted:
        raise UnknownRequest(f"no session ever asked {request_id}", request=request_id)
    return request_of(info)


async def answer(
    place: Outlast,
    action: RequestAction,
    request: Request,
    *,
    text: str | None,
    args: dict[str, Any] | None,
    principal: str,
    wait: bool,
    as_json: bool,
) -> int:
    """Answer a request, and show what became of that."""
    if args is not None and action is not RequestAction.edit:
        raise typer.BadParameter("--args is for `edit`")
    if action is RequestAction.edit and args is None:
        args = await edited(request)
    option = "deny" if action is RequestAction.deny else "approve"
    session = await place.session(request.session_id)
    receipt = await session.answer(
        request.request_id, option, text=text, args=args, principal=principal
    )
    if not as_json:
        error_out(f"to: {request_text(request)}", "dim")
    await note_idleness(place.store, as_json=as_json)
    if wait:
        return show_result(receipt, await result_of(receipt), as_json=as_json)
    show_receipt(receipt, as_json=as_json, did="answered")
    return 0


async def edited(request: Request) -> dict[str, Any]:
    if not sys.stdin.isatty():
        raise typer.BadParameter("without a terminal, `edit` takes --args JSON")
    found = await edit_arguments(request.args)
    if isinstance(found, str):
        raise typer.BadParameter(found)
    return found
