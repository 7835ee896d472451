"""What the tests say to their agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from outlast import Event, Outlast, Receipt, Session
from outlast.log.reader import Wakeups


async def book_a_trip(
    app: Outlast, session: Session[Any], see: Callable[[Event], None] | None = None
) -> list[Receipt[Any]]:
    """Send a follow-up during the turn, and answer whatever is asked."""
    sent: list[Receipt[Any]] = []
    async for event in session.events():
        if see:
            see(event)
        if event.type == "tool.started" and not sent:
            sent.append(await session.send("Thank you!", dispatch_id="follow-up"))
        if event.type == "request.opened":
            request_id, kind = event.data["request_id"], event.data["kind"]
            option, text = ("approve", None) if kind == "approval" else (None, "yes")
            await session.answer(request_id, option, text=text)
    return sent


async def say_nothing(app: Outlast, session: Session[Any]) -> list[Receipt[Any]]:
    async for _ in session.events():
        pass
    return []


async def approve_at_the_top(app: Outlast, session: Session[Any]) -> list[Receipt[Any]]:
    """Let one thing happen of what is asked for below, and leave the other until it is too late."""
    cursor = 0
    with Wakeups(app.store, session.id) as wakeups:
        while True:
            wakeups.clear()
            async for event in session.events(cursor, follow=False):
                cursor = event.offset
                if event.type == "request.opened" and event.data["tool"] == "settle":
                    await session.answer(event.data["request_id"], "approve", dispatch_id="yes")
                if event.type in ("turn.completed", "turn.failed"):
                    return []
            await wakeups.wait()


async def anchor_it(app: Outlast, session: Session[Any]) -> list[Receipt[Any]]:
    """Have the session told elsewhere from now on, and ask for it twice."""
    receipts = [
        await app.channels.anchor(session.id, "wall", "w-1", dispatch_id="anchor") for _ in range(2)
    ]
    assert [receipt.duplicate for receipt in receipts] == [False, True]
    assert (await receipts[0].result()).status == "completed"
    assert await session.continuation_token() == "channel:wall:w-1"
    return []
