"""Agents made by chance, with every kind of tool and every way for one to fail.

A tool's behaviour depends on the call and the attempt alone, so that a simulation can be
repeated; another attempt may well go otherwise.
"""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import Struct

from outlast.agents.agent import Agent
from outlast.agents.budget import Budget
from outlast.agents.limit import Limit
from outlast.agents.milestone import IntervalTrigger
from outlast.agents.options import Limits, ModelOptions
from outlast.agents.prompt.section import PromptContext, Section
from outlast.agents.prompt.template import PromptTemplate
from outlast.agents.runtime.context import Context
from outlast.agents.runtime.step import NotDone
from outlast.agents.tool import Approval, DedupeKey, Tool, tool
from outlast.core.amount import BudgetTerms, OnBudgetEnd
from outlast.errors import Retry, ToolError
from outlast.testing.scripted import ScriptedModel
from outlast.testing.simulation.history import History, TokenUsed
from outlast.testing.simulation.ledger import SQL
from outlast.testing.simulation.oauth_service import OAuthService
from outlast.testing.simulation.probe import note_step
from outlast.testing.simulation.random_answer import chance_of, script
from outlast.testing.simulation.random_context import random_context
from outlast.testing.simulation.random_rule import random_rules, resource_of

OTHER_LANE = "notes"
TOOLS = (
    "find note charge pay hurry look sign launch transfer reserve register survey nap march move"
    " edit edit query query delegate juggle order permit stake enter enter purchase purchase"
    " recite recite recite"
).split()
TENANTS = ("default", "acme")
TRANSACTIONAL = "purchase"


class ConcurrencyBound(Struct, frozen=True):
    """How many calls of a tool may run at once, in all or for each tenant."""

    name: str
    most: int
    per_tenant: bool

    def key(self, tenant: str) -> str:
        return f"{self.name} of {tenant}" if self.per_tenant else self.name


AT_ONCE = {
    "edit": ConcurrencyBound("editor", 1, per_tenant=True),
    "query": ConcurrencyBound("query", 2, per_tenant=False),
}


class OrderLine(Struct, frozen=True):
    text: str


class CallCount(Struct, frozen=True):
    count: int


def lines_so_far(ctx: PromptContext) -> str | None:
    lines = ctx.session.query(OrderLine).all()
    return f"There are {len(lines)} lines." if lines else None


PROMPT = PromptTemplate(
    [
        Section("work", "Work."),
        Section("lines", lines_so_far, depends_on=[OrderLine], tail=True),
    ]
)
"""Of an agent whose prompt follows its state; `verify` holds its records to their rules."""


class OutsideService:
    """A service in the world that remembers what was done under which key."""

    def __init__(self, seed: int, history: History) -> None:
        self.oauth_service = OAuthService(seed, history)
        self.done: dict[str, str] = {}
        self.addresses: list[str] = []
        """Where tools can be called back."""
        self.history = history

    async def take_order(self, address: str) -> None:
        """Learn where to call when something is done. That may be never."""
        note_step(self.history, "order")
        await asyncio.sleep(0.01)
        self.addresses.append(address)

    async def enter(self, ctx: Context[Any], token: str) -> str:
        """Use a token at the service; it may have been taken back."""
        await asyncio.sleep(0.01)
        owner = self.oauth_service.owner_of(token)
        self.history.note(TokenUsed, session_id=ctx.session.id, owner=owner)
        return f"entered as {owner}" if owner else "was not let in"

    async def walk(self, mile: int) -> int:
        """Do something that a tool wants done once."""
        note_step(self.history, f"mile {mile}")
        await asyncio.sleep(0.01)
        return mile

    async def work(self, ctx: Context[Any]) -> str:
        """Take some time, then do it, or fail."""
        chance = chance_of(ctx.idempotency_key, ctx.attempt)
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 0.3, 2.0, 15.0]))
        match chance.random():
            case luck if luck < 0.08:
                raise ToolError("it broke")
            case luck if luck < 0.12:
                raise Retry("try other words")
            case luck if luck < 0.16:
                raise ValueError("it went wrong")
        self.done[ctx.idempotency_key] = result = f"{ctx.tool} {chance.randrange(1000)}"
        await asyncio.sleep(chance.choice([0.0, 0.0, 0.01, 1.0]))
        return result


def random_agents(seed: int, outside: OutsideService) -> list[Agent[Any, Any]]:
    """Return agents that together do everything an agent can do."""
    chance, at_hand = chance_of(seed, "agents"), tools(outside)
    return [
        Agent(
            name,
            random_models(seed, name, output=kind is not None),
            instructions=PROMPT if name == "free" else "",
            tools=at_hand,
            output_type=kind,
            on_busy=chance.choice(["queue", "join", "interrupt"]),
            rules=random_rules(seed, name),
            context=random_context(seed, name),
            milestones=IntervalTrigger(calls=chance_of(seed, "milestones of", name).choice([2, 4])),
            resume=chance_of(seed, "resumption of", name).choice(["transcript", "milestone"]),
            model_options=ModelOptions(
                on_partial=chance.choice(["continue", "restart"]),
                limit=chance.choice([None, None, Limit(concurrency=2), Limit(rate=10, per=5)]),
                provider_patience=chance_of(seed, "patience of", name).choice([60.0, 24 * 3600.0]),
            ),
            limits=Limits(
                max_crashes=10,
                max_depth=2,
                max_steps=chance.choice([3, 50]),
                max_corrections=chance.choice([1, 3]),
                max_refusals=chance_of(seed, "refusals of", name).choice([0, 1, 3]),
                turns=chance.choice([None, Limit(concurrency=3), Limit(rate=5, per=10)]),
                turn_budget=random_budget(seed, "turns of", name, of=6),
            ),
            budget=random_budget(seed, "sessions of", name, of=12),
        )
        for name, kind in (("free", None), ("typed", int), ("plain", None))
    ]


def random_budget(seed: int, whose: str, agent: str, of: int) -> Budget | None:
    """Return no budget, or one of about so many steps or calls."""
    chance = chance_of(seed, f"budgets of {whose}", agent)
    ends: list[OnBudgetEnd] = ["ask", "ask", "fail", "hand_back"]
    end = chance.choice(ends)
    return chance.choice(
        [
            *[None] * 5,
            Budget(steps=of, on_end=end),
            Budget(model_calls=of, tool_calls=of, on_end=end),
            Budget(tokens=of * 2000, wall_time=600.0, on_end=end),
        ]
    )


def random_budgets(seed: int) -> dict[str, BudgetTerms]:
    """Return what tenants may use, in some of all lives: so little that their sessions contend."""
    chance = chance_of(seed, "budgets of tenants")
    return {
        tenant: Budget(tokens=chance.choice([20_000, 200_000]), steps=200, on_end="fail").terms
        for tenant in TENANTS
        if chance.random() < 0.3
    }


def random_models(seed: int, agent: str, *, output: bool) -> list[ScriptedModel]:
    """Return one model, or one and its fallbacks."""
    number = chance_of(seed, "models", agent).choice([1, 1, 2, 3])
    follow = script(seed, TOOLS, output=output)
    return [ScriptedModel(follow, name=f"model {each}") for each in range(1, number + 1)]


def tools(outside: OutsideService) -> list[Tool]:
    found = (plain_tools, careful_tools, waiting_tools, expectant_tools, limited_tools)
    return [made for make in found for made in make(outside)]


def plain_tools(outside: OutsideService) -> list[Tool]:
    @tool(readonly=True, reads=resource_of)
    async def find(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(idempotent=True, max_attempts=3, writes=resource_of)
    async def note(ctx: Context[Any], n: int) -> str:
        ctx.session.mutate(OrderLine).append(OrderLine(f"line {n}"))
        ctx.session.mutate(CallCount).update(lambda old: CallCount(old.count + 1 if old else 1))
        ctx.emit("noted", n)
        return await outside.work(ctx)

    @tool
    async def charge(ctx: Context[Any], n: int) -> str:
        ctx.session.mutate(OrderLine).seed(OrderLine(f"charged {n}"))
        return await outside.work(ctx)

    @tool(approval="always")
    async def pay(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(approval="once", timeout=0.3)
    async def hurry(ctx: Context[Any], n: int) -> str:
        for mile in range(n):
            await ctx.step(outside.walk, mile, name=f"mile {mile}")
        return await outside.work(ctx)

    @tool(readonly=True)
    def look(n: int) -> str:
        return f"looked {n}"

    @tool(readonly=True, reads=resource_of)
    def recite(n: int) -> str:
        return f"verse {n}, and on it goes. " * (6 * n)

    return [find, note, charge, pay, hurry, look, recite]


def careful_tools(outside: OutsideService) -> list[Tool]:
    async def was_done(ctx: Context[Any], args: dict[str, Any]) -> Any:
        return outside.done.get(ctx.idempotency_key, NotDone)

    @tool(on_interrupt="ask")
    async def sign(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(on_interrupt="fail")
    async def launch(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(on_interrupt=was_done)
    async def transfer(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(idempotency_key=DedupeKey(lambda args: str(args["n"] % 3), "session"))
    async def reserve(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(idempotent=True, idempotency_key=DedupeKey(lambda args: str(args["n"] % 3), "tenant"))
    async def register(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(transactional=True)
    async def purchase(ctx: Context[Any], n: int) -> str:
        chance = chance_of(ctx.idempotency_key, ctx.attempt)
        value = f"{ctx.tool} {chance.randrange(1000)}"
        row = (ctx.session.id, ctx.call_id, value)
        await ctx.tx.execute(SQL["purchase"], row)
        await asyncio.sleep(chance.choice([0.0, 0.01, 0.5]))
        if chance.random() < 0.1:
            raise ToolError("it broke")
        return value

    return [sign, launch, transfer, reserve, register, purchase]


def waiting_tools(outside: OutsideService) -> list[Tool]:
    @tool(idempotent=True)
    async def survey(ctx: Context[Any], n: int) -> str:
        counted = await ctx.step(outside.walk, 0, name="mile 0")
        within = timedelta(seconds=40) if n % 2 else None
        answer = await ctx.ask("Well?", timeout=within)
        return f"{counted} {answer.text}"

    @tool
    async def nap(ctx: Context[Any], n: int) -> str:
        await ctx.sleep(timedelta(seconds=n % 7 * 5))
        return await outside.work(ctx)

    @tool(idempotent=True, timeout=20.0)
    async def march(ctx: Context[Any], n: int) -> str:
        for mile in range(4):
            await ctx.heartbeat(mile)
            await asyncio.sleep(0.15)
        return await outside.work(ctx)

    @tool
    async def move(ctx: Context[Any], n: int) -> str:
        await ctx.session.set_continuation_token(f"{ctx.session.tenant} {n % 20}")
        return await outside.work(ctx)

    @tool(on_interrupt="rerun")
    async def delegate(ctx: Context[Any], n: int) -> str:
        counted = await ctx.step(outside.walk, 0, name="mile 0")
        tasks = [f"task {ctx.idempotency_key} {each}" for each in range(1 + n % 2)]
        said = await ctx.gather(*(ctx.agent("plain").ask(task) for task in tasks))
        return " ".join([str(counted), *said])

    @tool(on_interrupt="rerun")
    async def juggle(ctx: Context[Any], n: int) -> str:
        async def rest() -> str:
            await ctx.sleep(timedelta(seconds=5 + n % 4 * 5))
            return str(await ctx.step(outside.walk, 0, name="mile 0"))

        async def inquire() -> str:
            answer = await ctx.ask("Well?", timeout=timedelta(seconds=40))
            return f"{answer.text} {await hand_on('then')}"

        async def hand_on(task: str) -> str:
            return str(await ctx.agent("plain").ask(f"{task} {ctx.idempotency_key}"))

        if n % 3 == 0:
            came = await ctx.first(rest, inquire, partial(hand_on, "first"))
            return f"{came.name} {came.value}"
        return " ".join(await ctx.gather(rest, inquire, partial(hand_on, "first")))

    return [survey, nap, march, move, delegate, juggle]


def expectant_tools(outside: OutsideService) -> list[Tool]:
    """Tools that wait for a person, with a timeout."""

    @tool(on_interrupt="rerun")
    async def order(ctx: Context[Any], n: int) -> str:
        callback = await ctx.callback("done", timeout=timedelta(seconds=20 + n % 4 * 20))
        await ctx.step(outside.take_order, callback.url, name="order")
        if n % 5 == 0 and await callback.wait_for(timedelta(seconds=5)) is None:
            await ctx.step(outside.walk, 0, name="mile 0")
        return (await callback.wait()).text

    @tool(approval=Approval("always", timeout=25))
    async def permit(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(approval=Approval("always", timeout=40, on_expiry="fail"), idempotent=True)
    async def stake(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    @tool(on_interrupt="rerun")
    async def enter(ctx: Context[Any], n: int) -> str:
        token = await ctx.require_auth("oauth_service", timeout=timedelta(seconds=30 + n % 3 * 20))
        return await outside.enter(ctx, token)

    return [order, permit, stake, enter]


def limited_tools(outside: OutsideService) -> list[Tool]:
    @tool(mutex="editor")
    async def edit(ctx: Context[Any], n: int) -> str:
        if n % 5 == 0:
            await ctx.sleep(timedelta(seconds=n))
        return await outside.work(ctx)

    @tool(idempotent=True, limit=Limit(concurrency=AT_ONCE["query"].most))
    async def query(ctx: Context[Any], n: int) -> str:
        return await outside.work(ctx)

    return [edit, query]
