"""The demo's agent: its scripted model, its tools, and the services that the tools use.

Each effect is a line in a file outside the store (`effect.py`). The bank knows idempotency keys,
as payment services do; the telephone and the post office know none and do as they are asked.
The model reads from the conversation how far it is, as a real one does.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from outlast.agents.agent import Agent
from outlast.agents.model.client import ModelRequest
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.step import NotDone
from outlast.agents.tool import tool
from outlast.app import Outlast
from outlast.cli.demo.effect import DemoEffect, DemoFiles, EffectFile, ModelAsked
from outlast.clock import Clock
from outlast.core.message import ToolOutput, ToolOutputs
from outlast.core.name import turn_and_step
from outlast.engine.settings import WorkerSettings
from outlast.errors import ToolError
from outlast.testing.scripted import ScriptedModel, ScriptedReply

LIMIT = 200_00
"""Refunds above this many cents need a human's approval."""


class Order(Struct, frozen=True):
    """An order: the customer, the price, and how long the services take over it."""

    customer: str
    cents: int
    pace: float


ORDERS = {
    "A-101": Order("Marta Ruiz", 39_00, 1.0),
    "A-102": Order("Jonas Weber", 64_50, 1.3),
    "A-103": Order("Aiko Tanaka", 18_90, 0.8),
    "A-104": Order("Leila Haddad", 480_00, 1.1),
}


class OutsideWorld:
    """The services outside, as one worker reaches them."""

    def __init__(self, effects: EffectFile[DemoEffect], worker: str, clock: Clock) -> None:
        self._effects = effects
        self._worker = worker
        self._clock = clock

    def do(self, what: str, subject: str, key: str) -> None:
        """Do it, as often as it is asked for."""
        self._effects.write(DemoEffect(self._clock.now(), self._worker, what, subject, key))

    def do_once(self, what: str, subject: str, key: str) -> None:
        """Do it unless it was done under this key."""
        with self._effects.locked():
            known = any(e.key == key and e.done for e in self._effects.lines())
            now = self._clock.now()
            self._effects.write(DemoEffect(now, self._worker, what, subject, key, not known))

    def was_done(self, what: str, subject: str) -> bool:
        return any((e.what, e.subject) == (what, subject) for e in self._effects.lines())


def known(order: str) -> Order:
    if order not in ORDERS:
        raise ToolError(f"there is no order {order}")
    return ORDERS[order]


def euros(cents: int) -> str:
    return f"{cents / 100:.2f} €"


@tool(readonly=True)
async def look_up(order: str) -> str:
    """Find out who ordered and what was paid."""
    found = known(order)
    await asyncio.sleep(found.pace * 0.8)
    return f"{found.customer}, {euros(found.cents)}"


@tool(idempotent=True, approval=lambda args: args["cents"] > LIMIT)
async def refund(ctx: Context[OutsideWorld], order: str, cents: int) -> str:
    """Give the money back."""
    found = known(order)
    await asyncio.sleep(found.pace * 0.6)  # on the way to the bank
    ctx.deps.do_once("refund", order, ctx.idempotency_key)
    await asyncio.sleep(found.pace * 0.6)  # and back
    return f"{euros(cents)} back to {found.customer}"


@tool  # a call cannot be taken back, so an interrupted one is reported as unknown (the default)
async def ring_freight(ctx: Context[OutsideWorld], about: str) -> str:
    """Ring the freight company."""
    await asyncio.sleep(0.8)
    ctx.deps.do("call", about, ctx.idempotency_key)
    await asyncio.sleep(0.8)
    return "claim opened, number NF-2210"


@tool(readonly=True)
async def call_list(ctx: Context[OutsideWorld], about: str) -> str:
    """Look whether a call was made."""
    await asyncio.sleep(0.5)
    return "called once today" if ctx.deps.was_done("call", about) else "no call today"


def find_letter(ctx: Context[OutsideWorld], args: dict[str, str]) -> str | type[NotDone]:
    """Ask the post office what became of a letter whose posting was interrupted."""
    found = ctx.deps.was_done("letter", args["order"])
    return "posted, as the post office knows" if found else NotDone


@tool(on_interrupt=find_letter)
async def post_letter(ctx: Context[OutsideWorld], order: str) -> str:
    """Post a letter of apology."""
    found = known(order)
    await asyncio.sleep(found.pace * 0.6)
    ctx.deps.do("letter", order, ctx.idempotency_key)
    await asyncio.sleep(found.pace * 0.6)
    return "posted"


TOOLS = (look_up, refund, ring_freight, call_list, post_letter)


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
    ("ring_freight", {"about": PALLET}),
)
CHECK = reply(
    "My call was interrupted, and I cannot know whether it got through. I will not ring twice on "
    "a guess: the call list knows.",
    ("call_list", {"about": PALLET}),
)
RING_AFTER_ALL = reply(
    "The list shows no call, so it never got through. May I ring again?",
    ("ring_freight", {"about": PALLET}),
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


AGENT = "claims"


def make_app(directory: Path, worker: str = "") -> Outlast:
    """Return the application: one that works under a name, or one that only reads."""
    files, clock = DemoFiles(directory), Clock()

    def pay(request: ModelRequest) -> None:
        files.asked.write(ModelAsked(clock.now(), worker, request.call_id, request.attempt))

    @asynccontextmanager
    async def world() -> AsyncIterator[OutsideWorld]:
        yield OutsideWorld(files.effects, worker, clock)

    agent: Agent[OutsideWorld, str] = Agent(
        AGENT,
        scripted_model(pay),
        instructions="You settle the claims of a small shop.",
        tools=TOOLS,
    )
    settings = WorkerSettings(name=worker) if worker else None
    return Outlast([agent], store=files.store_url, worker=settings, deps=world, clock=clock)
