"""`outlast send`: a message for a session."""

import asyncio
import sys
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.event_line import value_text
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    AsRaw,
    Principal,
    SessionId,
    StoreUrl,
    note_idleness,
    open_place,
    person,
)
from outlast.cli.terminal.output import error_out, json_out, out
from outlast.cli.terminal.run import command
from outlast.session import Receipt, Result
from outlast.session.inbox import deadline_of
from outlast.session.request import request_text


@command
async def send(
    session: SessionId,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The message; - reads it from the standard input.")
    ],
    dispatch_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The same id again sends nothing: safe to repeat."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the answer; print it.")] = False,
    lane: Annotated[str, typer.Option(help="The lane of the session to send it to.")] = "main",
    deadline: Annotated[
        str | None,
        typer.Option(metavar="INSTANT", help="Its turn fails then: 2099-01-31T12:00:00Z."),
    ] = None,
    principal: Principal = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
    raw: AsRaw = False,
) -> int:
    """Send a message to a session.

    It is in the session's queue for good when this returns.

    Example: outlast send ses_01J9ZK "And order 18?" --wait
    """
    async with open_place(store) as app:
        handle = await app.session(session)
        message = sys.stdin.read() if text == "-" else text
        receipt = await handle.send(
            message,
            dispatch_id=dispatch_id,
            lane=lane,
            principal=person(principal),
            deadline=deadline_of(deadline),
        )
        await note_idleness(app.store, as_json=as_json)
        if not wait:
            show_receipt(receipt, as_json=as_json)
            return 0
        return show_result(receipt, await result_of(receipt), as_json=as_json)


def plain_receipt(receipt: Receipt[Any]) -> dict[str, Any]:
    return {
        "session_id": receipt.session_id,
        "delivery_id": receipt.delivery_id,
        "lane": receipt.lane,
        "offset": receipt.offset,
        "position": receipt.position,
        "duplicate": receipt.duplicate,
    }


def show_receipt(receipt: Receipt[Any], *, as_json: bool, did: str = "queued") -> None:
    if as_json:
        json_out(plain_receipt(receipt))
    elif receipt.duplicate:
        out(f"{receipt.delivery_id} was {did} before; nothing was sent")
    else:
        before = f", {receipt.position} before it" if receipt.position else ""
        out(f"{did} as {receipt.delivery_id}{before}")


async def result_of(receipt: Receipt[Any]) -> Result[Any]:
    """Wait for a message's result; on Ctrl-C say where to look for it later."""
    try:
        return await receipt.result()
    except asyncio.CancelledError:  # Ctrl-C
        look = f"outlast show {receipt.session_id}"
        error_out(f"{receipt.delivery_id} is in the queue all the same; look at it with: {look}")
        raise


def show_result(receipt: Receipt[Any], result: Result[Any], *, as_json: bool) -> int:
    """Print what a message came to; return 1 if it came to nothing."""
    if as_json:
        json_out({**plain_receipt(receipt), "result": asdict(result)})
    elif result.status == "completed":
        out(value_text(result.output))
    elif result.status == "waiting":
        for request in result.requests:
            out(f"waits for {request.request_id}: {request_text(request)}")
    else:
        error = f": {result.error.code}: {result.error.message}" if result.error else ""
        error_out(f"{result.status}{error}")
    return 0 if result.status in ("completed", "waiting") else 1
