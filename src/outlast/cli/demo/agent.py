"""What the story's model says. It reads its place from the conversation, as a real one does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outlast.agents.model.client import ModelRequest
from outlast.cli.demo.world import LIMIT, ORDERS, euros
from outlast.core.message import ToolOutput, ToolOutputs
from outlast.core.name import turn_and_step
from outlast.testing.scripted import ScriptedModel, ScriptedReply

JOB = "Friday's pallet was lost at sea. Please settle the four orders on it: A-101 to A-104."
FOLLOW_UP = "Thank you! Please post each of them a letter of apology, too."
PALLET = "Friday's pallet"

TOTAL = euros(sum(order.cents for order in ORDERS.values()))
CHUNK, PACE, THOUGHT = 4, 0.045, 0.4
"""Characters to a piece, seconds between pieces, and seconds before the first."""

Call = tuple[str, Mapping[str, Any]]


def reply(text: str, *calls: Call) -> ScriptedReply:
    chunks = max(2, len(text) // CHUNK)
    return ScriptedReply(text=text, calls=calls, chunks=chunks, pace=PACE, delay=THOUGHT)


LOOK_UP = reply(
    "A lost pallet and four customers who wait. Before I move any money I look up all four "
    "orders, to see who paid what.",
    *(("look_up", {"order": number}) for number in ORDERS),
)
REFUND = reply(
    f"Four orders, {TOTAL} in all. I refund the three small ones at once. "
    f"{euros(ORDERS['A-104'].cents)} is above my limit of {euros(LIMIT)}: that one needs your "
    "approval.",
    *(("refund", {"order": number, "cents": order.cents}) for number, order in ORDERS.items()),
)
RING = reply(
    "All four have their money back. The freight company ought to pay for it, so I ring their "
    "claims desk.",
    ("ring_carrier", {"about": PALLET}),
)
CHECK = reply(
    "My call was interrupted, and I cannot know whether it got through. I will not ring twice on "
    "a guess: the call list knows.",
    ("call_list", {"about": PALLET}),
)
RING_AFTER_ALL = reply(
    "The list shows no call, so it never got through. May I ring again?",
    ("ring_carrier", {"about": PALLET}),
)
REPORT = reply(
    f"Done: {TOTAL} went back to four customers, each once, and the freight company has our "
    "claim for the pallet."
)
LETTERS = reply(
    "Gladly. Four letters by today's post, each in the customer's own name, with our apologies "
    "and the news that the money is on its way.",
    *(("post_letter", {"order": number}) for number in ORDERS),
)
GOODBYE = reply(
    "All four letters are in the post. One refund and one letter for each of them, and the case "
    "is closed."
)


def next_reply(request: ModelRequest) -> ScriptedReply:
    """Return what the model says next, given all that was said and done."""
    turn, step = turn_and_step(request.call_id)
    if turn != "t1":
        return LETTERS if step == 1 else GOODBYE
    opening = (LOOK_UP, REFUND, RING)
    return opening[step - 1] if step <= len(opening) else after_ringing(last_result(request))


def after_ringing(last: ToolOutput) -> ScriptedReply:
    """Never ring twice on a guess: find out first."""
    if last.tool == "call_list":
        return RING_AFTER_ALL if "no call" in last.text else REPORT
    return CHECK if "unknown" in last.text else REPORT


def last_result(request: ModelRequest) -> ToolOutput:
    given = (m for m in reversed(request.view.messages) if isinstance(m, ToolOutputs))
    return next(given).results[-1]


def scripted_model(on_request: Callable[[ModelRequest], None]) -> ScriptedModel:
    return ScriptedModel(next_reply, on_request=on_request)
