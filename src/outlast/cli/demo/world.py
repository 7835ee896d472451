"""What the story's agent does to the world: a bank, a telephone and a post office.

Each thing done is a line in a ledger outside the store. The bank knows idempotency keys, as
payment services do; the telephone and the post office know none and do what they are asked.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from outlast.agents.runtime.context import Context
from outlast.agents.tool import NotDone, tool
from outlast.cli.demo.effect import DemoEffect, EffectFile
from outlast.clock import Clock
from outlast.errors import ToolError

LIMIT = 200_00
"""Refunds above this many cents need a human's approval."""


class Order(Struct, frozen=True):
    """An order: who paid how much, and how long this story's services take over it."""

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
    """All that is outside, as one worker reaches it."""

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


@tool  # nobody can unring a telephone: interrupted, it is reported as unknown, the default
async def ring_carrier(ctx: Context[OutsideWorld], about: str) -> str:
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


TOOLS = (look_up, refund, ring_carrier, call_list, post_letter)
