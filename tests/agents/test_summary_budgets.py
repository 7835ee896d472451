"""What a summary has reserved of budgets comes back, however the summary ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from scene import FAST, log_of, running, the, until

from outlast import Agent, Budget, ContextPolicy, Limit, ModelOptions, Outlast, Session, tool
from outlast.agents.model.client import FinishedAnswer, ModelFailure, ModelPiece, ModelRequest
from outlast.core import record as r
from outlast.core.amount import Amounts, BudgetKey, BudgetState
from outlast.core.message import ToolOutputs
from outlast.core.record import Failure
from outlast.core.result import Usage
from outlast.log.verify import verify
from outlast.store import Commit, Committed, Refused, Store
from outlast.stores.sqlite import MemoryStore
from outlast.testing.crash import CrashingStore
from outlast.testing.crash_everywhere import SharedStore
from outlast.testing.scripted import ScriptedModel, ScriptedReply, call, say

AT_WILL = ContextPolicy(summarize=True, clear=False, superseded=False)
SOON = ContextPolicy(max_tokens=1_500, summarize=True, clear=False, superseded=False)
MUCH = Budget(tokens=1_000_000, model_calls=1_000, steps=1_000)


@dataclass(frozen=True)
class Anchor:
    """A value of the session's state."""

    kind: str


class Summing(ScriptedModel):
    """Looks once in every turn, then answers; its summaries can be held up, or fail."""

    def __init__(self) -> None:
        self.summaries = 0
        self.is_away = False
        self.is_held = False
        self.began = asyncio.Event()
        self.go_on = asyncio.Event()
        super().__init__(self._answer)

    def _answer(self, request: ModelRequest) -> ScriptedReply:
        if request.is_summary:
            self.summaries += 1
            if self.is_away:
                raise ConnectionError("no summaries today")
            return say("It was all about anchors.")
        done = not request.tools or isinstance(request.view.messages[-1], ToolOutputs)
        return say("Done.") if done else call("look")

    def classify(self, error: Exception) -> ModelFailure:
        return ModelFailure("transient", Failure("AWAY", str(error)))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPiece]:
        if request.is_summary and self.is_held:
            self.began.set()
            await self.go_on.wait()
        async for piece in super().stream(request):
            if isinstance(piece, FinishedAnswer):
                sent = sum(len(repr(message)) for message in request.view.messages)
                piece = replace(piece, usage=Usage(sent // 4, 10))
            yield piece


@tool(readonly=True)
async def look() -> str:
    return "an anchor " * 400


def agent(model: ScriptedModel, context: ContextPolicy = AT_WILL, **options: Any) -> Agent:
    options.setdefault("budget", MUCH)
    return Agent("a", model, tools=[look], context=context, **options)


async def talk(app: Outlast, turns: int = 4) -> Session[Any]:
    session = await app.start("a", "The first instruction.")
    await session.wait()
    for number in range(2, turns + 1):
        await (await session.send(f"Message {number}")).result()
    return session


async def budget_of(app: Outlast, session: Session[Any]) -> BudgetState:
    key = BudgetKey("session", session.id)
    [state] = await app.store.budget.find_budgets("default", [key])
    return state


async def inside(session: Session[Any], kind: str) -> list[Any]:
    return [event for event in await log_of(session, internals=True) if event.type == kind]


async def is_settled(app: Outlast, session: Session[Any]) -> BudgetState:
    """Hold that nothing is reserved any more and that what is spent is what was recorded."""
    assert await verify(app.store, session.id) == []
    state = await budget_of(app, session)
    assert state.reserved == Amounts()
    used = (await session.usage()).own
    assert (state.spent.tokens, state.spent.model_calls) == (used.tokens, used.model_calls)
    return state


async def nothing_is_reserved(app: Outlast, session: Session[Any]) -> None:
    async with asyncio.timeout(20):
        while (await budget_of(app, session)).reserved:  # noqa: ASYNC110 - it may rest
            await asyncio.sleep(0.01)


async def test_one_that_is_made_is_counted() -> None:
    model = Summing()
    async with running(agent(model)) as app:
        session = await talk(app)
        before = await budget_of(app, session)
        model.is_held = True
        receipt = await session.compact()
        await model.began.wait()
        held = (await budget_of(app, session)).reserved
        assert (held.model_calls, held.steps) == (1, 0)
        assert held.tokens > 1_000
        model.go_on.set()
        assert (await receipt.result()).status == "completed"
        after = await is_settled(app, session)
        assert after.spent.model_calls == before.spent.model_calls + 1
        assert after.spent.steps == before.spent.steps


async def test_one_that_fails_gives_back_what_it_had_reserved() -> None:
    model = Summing()
    async with running(agent(model)) as app:
        session = await talk(app)
        before = await budget_of(app, session)
        model.is_away = True
        assert (await (await session.compact()).result()).status == "completed"
        assert await inside(session, "summary.failed")
        assert (await is_settled(app, session)).spent.tokens == before.spent.tokens


async def test_one_that_takes_too_long_gives_back_what_it_had_reserved() -> None:
    model = Summing()
    options = ModelOptions(timeout=0.3, idle_timeout=0.1)
    async with running(agent(model, model_options=options)) as app:
        session = await talk(app)
        model.is_held = True
        assert (await (await session.compact()).result()).status == "completed"
        assert await inside(session, "summary.failed")
        await is_settled(app, session)


@pytest.mark.parametrize("how", ["cancel", "end"])
async def test_one_whose_turn_is_stopped_is_settled_by_an_estimate(how: str) -> None:
    model = Summing()
    async with running(agent(model, SOON)) as app:
        session = await talk(app, 2)
        model.is_held = True
        receipt = await session.send("What else?")
        await model.began.wait()
        await (session.cancel() if how == "cancel" else session.end())
        assert (await receipt.result()).status == "cancelled"
        await nothing_is_reserved(app, session)
        await is_settled(app, session)
        assert (await the(session, "usage.recorded"))[-1].data["estimated"]


async def test_one_that_is_cut_off_without_a_budget_is_counted_by_an_estimate() -> None:
    model = Summing()
    async with running(agent(model, SOON, budget=None)) as app:
        session = await talk(app, 2)
        model.is_held = True
        receipt = await session.send("What else?")
        await model.began.wait()
        await session.cancel()
        assert (await receipt.result()).status == "cancelled"
        [used] = [e for e in await the(session, "usage.recorded") if e.data.get("estimated")]
        assert used.call_id == "t3.v2"
        assert used.data["model"] == "scripted"
        assert used.data["input_tokens"] > 1_000
        assert await verify(app.store, session.id) == []


async def test_one_whose_message_is_cancelled_before_its_turn_is_settled() -> None:
    model = Summing()
    policy = ContextPolicy(max_tokens=1_075, summarize=True, clear=False, superseded=False)
    async with running(agent(model, policy)) as app:
        session = await talk(app, 1)
        model.is_held = True
        receipt = await session.send("What else?")
        await model.began.wait()
        assert not [e for e in await inside(session, "turn.started") if e.turn == "t2"]
        await session.cancel()
        assert (await receipt.result()).status == "cancelled"
        await nothing_is_reserved(app, session)
        await is_settled(app, session)
        model.is_held = False
        assert (await (await session.send("Go on")).result()).output == "Done."
        await is_settled(app, session)


async def test_a_view_that_goes_back_settles_the_one_that_was_cut_off(tmp_path: Path) -> None:
    store, model = f"sqlite:///{tmp_path / 'a.db'}", Summing()
    async with running(agent(model), store=store) as app:
        session = await talk(app)
        model.is_held = True
        await session.compact()
        await model.began.wait()
    model.is_held = False
    async with running(agent(model), store=store) as app:
        session = await app.session(session.id)
        assert (await (await session.rewind("t1")).result()).status == "completed"
        await is_settled(app, session)


@pytest.mark.parametrize("within_turn", [False, True])
async def test_one_that_a_worker_hands_back_is_begun_again(
    tmp_path: Path, within_turn: bool
) -> None:
    store, model = f"sqlite:///{tmp_path / 'a.db'}", Summing()
    context = SOON if within_turn else AT_WILL
    async with running(agent(model, context), store=store) as app:
        session = await talk(app, 2)
        model.is_held = True
        receipt = await (session.send("What else?") if within_turn else session.compact())
        await model.began.wait()
    model.is_held = False
    async with running(agent(model, context), store=store) as app:
        session = await app.session(session.id)
        assert (await session.result_of(receipt.delivery_id)).status == "completed"
        await is_settled(app, session)
        attempts = [each.attempt_id for each in await inside(session, "summary.started")]
        assert [name.rpartition("#")[2] for name in attempts][-2:] == ["1", "2"]


@asynccontextmanager
async def crashing(agent: Agent, store: Store) -> AsyncIterator[CrashingStore]:
    """A worker that can be made to die with its next commit."""
    fragile = CrashingStore(store, how="raise")
    worker = Outlast([agent], store=fragile, worker=replace(FAST, grace=0.0))
    try:
        async with worker:
            yield fragile
    except asyncio.CancelledError:
        if not fragile.crashed.is_set():
            raise


@pytest.mark.parametrize("then", ["go on", "rewind"])
@pytest.mark.parametrize("within_turn", [False, True])
async def test_one_that_a_crash_cuts_off_is_settled(then: str, within_turn: bool) -> None:
    model, memory = Summing(), MemoryStore()
    await memory.migrate()
    store = SharedStore(memory)
    a = agent(model, SOON if within_turn else AT_WILL)
    async with running(a, settings=None, store=store) as app:
        async with crashing(a, store) as fragile:
            session = await talk(app, 2)
            model.is_held = True
            receipt = await (session.send("What else?") if within_turn else session.compact())
            await model.began.wait()
            assert (await budget_of(app, session)).reserved
            fragile.crashed.set()  # from here on it learns of nothing, and writes nothing
        model.is_held = False
        rewound = await session.rewind("t1") if then == "rewind" else None
        async with running(a, store=store):
            assert (await receipt.result()).status == "completed"
            if rewound:
                assert (await rewound.result()).status == "completed"
            await is_settled(app, session)
            estimates = [e for e in await the(session, "usage.recorded") if e.data.get("estimated")]
            assert len(estimates) == 1
    await memory.close()


async def test_one_for_which_too_little_is_left_is_not_made() -> None:
    model = Summing()
    async with running(agent(model, budget=Budget(model_calls=8))) as app:
        session = await talk(app)  # two calls a turn
        assert (await (await session.compact()).result()).status == "completed"
        assert not await inside(session, "summary.started")
        assert model.summaries == 0
        assert (await the(session, "compaction.completed"))[0].data["results"]
        await is_settled(app, session)


async def test_one_that_no_budget_allows_keeps_no_permit_of_its_model() -> None:
    model = Summing()
    options = ModelOptions(limit=Limit(concurrency=1))
    budget = Budget(tokens=11_500)  # enough for calls, and never for a summary of any length
    async with running(agent(model, SOON, budget=budget, model_options=options)) as app:
        session = await talk(app, 3)
        assert await the(session, "compaction.completed")
        assert model.summaries == 0
        assert not await app.store.limit.permits()
        await is_settled(app, session)


@pytest.mark.parametrize("answer", ["extend", "stop"])
async def test_a_turn_asks_for_more_when_its_summary_has_taken_the_rest(answer: str) -> None:
    model = Summing()
    async with running(agent(model, SOON, budget=Budget(model_calls=6))) as app:
        session = await talk(app, 2)
        receipt = await session.send("What else?")
        await until(session, "session.waiting", 3)
        [request] = await session.requests()
        await is_settled(app, session)
        await session.answer(request.request_id, answer)
        result = await receipt.result()
        assert result.status == ("completed" if answer == "extend" else "failed")
        await is_settled(app, session)


async def test_a_turn_hands_back_what_it_has_when_its_summary_has_taken_the_rest() -> None:
    model = Summing()
    budget = Budget(model_calls=7, on_end="hand_back")
    async with running(agent(model, SOON, budget=budget)) as app:
        session = await talk(app, 2)
        result = await (await session.send("What else?")).result()
        assert result.budget_exhausted
        assert result.output == "Done."
        await is_settled(app, session)


async def test_one_that_ends_while_something_else_is_written_is_not_made_twice() -> None:
    model, memory = Summing(), MemoryStore()

    class Slow(SharedStore):
        """Lets the summary end while a change of state is on its way."""

        async def commit(self, commits: Sequence[Commit]) -> Sequence[Committed | Refused]:
            if any(isinstance(e, r.StateChanged) for commit in commits for e in commit.records):
                model.go_on.set()
                for _ in range(500):
                    await asyncio.sleep(0)
            return await super().commit(commits)

    await memory.migrate()
    async with running(agent(model, budget=None), store=Slow(memory)) as app:
        session = await talk(app, 2)
        model.is_held = True
        receipt = await session.compact()
        await model.began.wait()
        await (await session.mutate(Anchor).append(Anchor("big"))).result()
        assert (await receipt.result()).status == "completed"
        assert len(await inside(session, "summary.started")) == 1
        assert await verify(app.store, session.id) == []
    await memory.close()
