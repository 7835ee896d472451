"""Crashes in a session that plans, has skills, is compacted, taken back and kept to budgets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from postgres_server import empty_schema

from outlast import Agent, Budget, Context, ContextPolicy, Limits, Outlast, tool
from outlast.agents.model.client import ModelRequest
from outlast.core.amount import Amounts, BudgetKey
from outlast.core.message import ToolOutputs, UserMessage, text_of
from outlast.log.verify import verify
from outlast.planning import Plan, Planning
from outlast.skills import LoadedSkill
from outlast.store import Store
from outlast.stores.postgres import PostgresStore
from outlast.testing import Ledger, ScriptedModel, call, crash_everywhere, say
from outlast.testing.report import CrashReport
from outlast.testing.scripted import ScriptedReply

EVERY = "OUTLAST_EVERY_KILL" in os.environ
"""Set by `make chaos`; without it some places are tried, others each time the code changes them."""
TASK = "Be kind. Serve tea."
SKILL = "Boil the water."
HEAD = "---\nname: tea\ndescription: Makes tea.\n---\n\n"

SCRIPT = [
    call("load_skill", skill="tea"),
    call("planning_setup_plan", objective="tea", initial_steps=["boil", "pour"]),
    call("look", size=4_000),
    say("It boils."),
    call("look", size=4_500),
    call("pour", cups=2),
    call("planning_update_step", step_id=1, status="done"),
    say("It is poured."),
    call("pour", cups=3),
    call("look", size=5_000),
    call("planning_update_step", step_id=2, status="done"),
    say("Served."),
]
SEEN: list[str] = []
"""What was wrong with a request, in any run."""


def answer(request: ModelRequest) -> ScriptedReply:
    if request.is_summary:
        return say("There was talk of tea.")
    told = seen_in(request)
    if TASK not in told:
        SEEN.append(f"{request.call_id} has no task")
    if request.view.answers and SKILL not in told:
        SEEN.append(f"{request.call_id} has no skill")
    if len(told) > 12_000:
        SEEN.append(f"{request.call_id} has {len(told)} characters")
    return SCRIPT[request.view.answers]


def seen_in(request: ModelRequest) -> str:
    texts: list[str] = []
    for message in request.view.messages:
        if isinstance(message, UserMessage):
            texts.append(text_of(message.content))
        elif isinstance(message, ToolOutputs):
            texts += [result.text for result in message.results]
    return "\n".join(texts)


@tool(readonly=True)
async def look(size: int) -> str:
    return "steam " * (size // 6)


def host(skills: Path, ledger: Ledger) -> Agent[Any, Any]:
    @tool(idempotent=True)
    async def pour(ctx: Context[Any], cups: int) -> str:
        ledger.record("poured", cups=cups, idempotency_key=ctx.idempotency_key)
        return "poured"

    return Agent(
        "host",
        ScriptedModel(answer),
        tools=[look, pour],
        planning=Planning(),
        skills=skills,
        context=ContextPolicy(max_tokens=1_800, summarize=True, clear=False),
        budget=Budget(steps=9, tokens=1_000_000),
        limits=Limits(turn_budget=Budget(model_calls=30)),
    )


async def serve(app: Outlast) -> tuple[Any, ...]:
    """Three turns, between them a compaction and a way back, and a question for a budget."""
    session = await app.start("host", TASK, dispatch_id="tea")
    outputs = [(await session.wait()).output]
    outputs.append((await (await session.send("Go on", dispatch_id="2")).result()).output)
    changes = [await session.compact(), await session.rewind("t1")]
    changed = [(await receipt.result()).status for receipt in changes]
    receipt = await session.send("Once more", dispatch_id="3")
    asked = 0
    while requests := (await session.wait()).requests:
        asked += 1
        await session.answer(requests[0].request_id, "extend")
    outputs.append((await receipt.result()).output)
    plan, skill = await session.query(Plan).latest(), await session.query(LoadedSkill).latest()
    assert plan
    assert skill
    key = BudgetKey("session", session.id)
    [budget] = await app.store.budget.find_budgets("default", [key])
    used = (await session.usage()).own
    return (
        *outputs,
        *changed,
        asked,
        [step.status for step in plan.steps],
        skill.skill,
        [str(found) for found in await verify(app.store, session.id)],
        budget.reserved == Amounts(),
        budget.spent.tokens == used.tokens,
    )


async def crash_everything(
    tmp_path: Path, most: int, store: Callable[[], Store] | None
) -> CrashReport:
    (tmp_path / "tea").mkdir()
    (tmp_path / "tea/SKILL.md").write_text(f"{HEAD}{SKILL}\n", "utf-8")
    SEEN.clear()
    ledger = Ledger()
    agents = [host(tmp_path, ledger)]
    return await crash_everywhere(
        serve, agents=agents, ledger=ledger, store=store, most=None if EVERY else most
    )


def nothing_went_wrong(report: CrashReport) -> None:
    assert report.undisturbed.output == (
        "It boils.",
        "It is poured.",
        "Served.",
        "completed",
        "completed",
        1,
        ["done", "done"],
        "tea",
        [],
        True,
        True,
    )
    report.assert_no_effect_repeated()
    report.assert_nothing_lost()
    report.assert_same_output()
    assert SEEN == []


async def test_plans_skills_compactions_rewinds_and_budgets_survive_crashes(
    tmp_path: Path,
) -> None:
    report = await crash_everything(tmp_path, 16, None)
    nothing_went_wrong(report)
    if EVERY:
        written = {kind for run in report.runs if run.point for kind in run.point.writing}
        assert written >= {"summary.started", "compaction.completed", "context.rewound"}
        assert written >= {"budget.charged", "budget.exhausted", "budget.extended"}
    else:
        assert len(report.runs) > 10


async def test_they_survive_them_on_postgresql_too(
    tmp_path: Path, postgres_server: str, postgres_url: str
) -> None:
    schema = postgres_url.partition("schema=")[2].partition("&")[0]

    def fresh() -> Store:
        empty_schema(postgres_server, schema)
        return PostgresStore(postgres_url)

    report = await crash_everything(tmp_path, 10, fresh)
    nothing_went_wrong(report)
