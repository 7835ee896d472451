"""`outlast send`: a message for a session."""

import asyncio
import sys
from datetime import timedelta
from typing import Annotated, Any

import typer
from msgspec.structs import asdict

from outlast.cli.terminal.conversation import AT_WORK
from outlast.cli.terminal.event_line import value_text
from outlast.cli.terminal.log_format import show_notices
from outlast.cli.terminal.option import (
    DEFAULT_STORE,
    AsJson,
    AsRaw,
    Principal,
    SessionId,
    StoreUrl,
    Timeout,
    note_idleness,
    open_place,
    person,
    span_of,
)
from outlast.cli.terminal.output import error_out, json_out, out
from outlast.cli.terminal.run import TIME_IS_UP, command
from outlast.session import Receipt, Result
from outlast.session.inbox import deadline_of
from outlast.session.request import request_text
from outlast.session.waiting import sentence


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
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed", help="With the same --dispatch-id again: retry its turn if it failed."
        ),
    ] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the answer; print it.")] = False,
    timeout: Timeout = None,
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

    It is in the session's queue for good when this returns. With --wait and --timeout it ends with
    3 if there is no answer in time, and says what the session waits for; the message stays.

    Example: outlast send ses_01J9ZK… "And order 18?" --wait
    """
    if timeout is not None and not wait:
        raise typer.BadParameter("it is for --wait", param_hint="'--timeout'")
    longest = span_of(timeout)
    if wait:
        show_notices()
    async with open_place(store) as app:
        handle = await app.session(session)
        message = sys.stdin.read() if text == "-" else text
        receipt = await handle.send(
            message,
            dispatch_id=dispatch_id,
            retry_failed=retry_failed,
            lane=lane,
            principal=person(principal),
            deadline=deadline_of(deadline),
        )
        await note_idleness(app.store, as_json=as_json)
        if not wait:
            show_receipt(receipt, as_json=as_json)
            return 0
        return show_result(receipt, await result_of(receipt, longest), as_json=as_json)


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


async def result_of(receipt: Receipt[Any], timeout: timedelta | None = None) -> Result[Any]:
    """Wait for a message's result; on Ctrl-C say where to look for it later."""
    try:
        return await receipt.result(timeout=timeout)
    except asyncio.CancelledError:  # Ctrl-C
        look = f"outlast show {receipt.session_id}"
        error_out(f"{receipt.delivery_id} is in the queue all the same; look at it with: {look}")
        raise


def show_result(receipt: Receipt[Any], result: Result[Any], *, as_json: bool) -> int:
    """Print what a message came to; return 1 if it came to nothing, 3 if the time was up."""
    if as_json:
        json_out({**plain_receipt(receipt), "result": asdict(result)})
    elif result.status == "completed":
        out(value_text(result.output))
    elif result.status == "waiting":
        for request in result.requests:
            out(f"waits for {request.request_id}: {request_text(request)}")
    elif result.status == "running":
        wait = result.waiting_for
        error_out("the time is up: " + (sentence(wait, receipt.session_id) if wait else AT_WORK))
    else:
        error = f": {result.error.code}: {result.error.message}" if result.error else ""
        error_out(f"{result.status}{error}")
    if result.status == "running":
        return TIME_IS_UP
    return 0 if result.status in ("completed", "waiting") else 1
