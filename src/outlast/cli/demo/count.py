"""Counts what a telling cost and did: from the log and from the ledgers outside it.

Nothing is assumed: a promise that was broken shows here as a number and a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from outlast.cli.demo.effect import DemoEffect, ModelAsked
from outlast.cli.demo.kill import Kill
from outlast.core import record as r
from outlast.core.record import Entry

Fact = TypeVar("Fact")
WANTED = {"refund": 4, "call": 1, "letter": 4}


class DemoCounts(Struct, frozen=True, kw_only=True):
    """The numbers of one telling.

    A model call is cut off if its worker died before the answer was recorded, and repeated if
    it was made although the answer had been recorded. `asked_again` counts requests to the
    bank that it knew by their key and did not do again.
    """

    kills: int
    kills_by_phase: dict[str, int]
    model_calls_paid: int
    model_calls_answered: int
    model_calls_cut_off: int
    model_calls_repeated: int
    tool_runs: int
    tool_runs_cut_off: int
    effects: int
    effects_by_kind: dict[str, int]
    effects_repeated: int
    effects_asked_again: int
    deliveries_sent: int
    deliveries_settled: int
    deliveries_lost: int
    takeover_ms: list[int]
    takeovers_missing: int
    broken: list[str]


def count(
    entries: Sequence[Entry],
    asked: Sequence[ModelAsked],
    effects: Sequence[DemoEffect],
    kills: Sequence[Kill],
    receipts: Sequence[str],
    findings: Sequence[str] = (),
) -> DemoCounts:
    """Count everything, and say in sentences which promises were not kept.

    `findings` are what a check of the log and its indexes found wrong.
    """
    answers = {e.call_id: (e.attempt, at) for at, e in of_kind(entries, r.MessageCompleted)}
    repeated = [a for a in asked if a.call_id in answers and a.at >= answers[a.call_id][1]]
    cut_off = [a for a in asked if a.attempt != answers.get(a.call_id, (0, 0))[0]]
    done = Counter((e.what, e.subject) for e in effects if e.done)
    settled = Counter(e.delivery_id for _, e in of_kind(entries, r.DeliverySettled))
    runs, ends = runs_of(entries)
    kinds = Counter(what for what, _ in done)
    tally = DemoCounts(
        kills=len(kills),
        kills_by_phase=dict(Counter(kill.phase for kill in kills)),
        model_calls_paid=len(asked),
        model_calls_answered=len(answers),
        model_calls_cut_off=len([a for a in cut_off if a not in repeated]),
        model_calls_repeated=len(repeated),
        tool_runs=len(runs),
        tool_runs_cut_off=len(runs - ends),
        effects=len(done),
        effects_by_kind=dict(kinds),
        effects_repeated=done.total() - len(done),
        effects_asked_again=sum(not e.done for e in effects),
        deliveries_sent=len(receipts),
        deliveries_settled=sum(settled[receipt] for receipt in receipts),
        deliveries_lost=sum(not settled[receipt] for receipt in receipts),
        takeover_ms=[kill.takeover_ms for kill in kills if kill.takeover_ms is not None],
        takeovers_missing=sum(kill.held and kill.takeover_ms is None for kill in kills),
        broken=[],
    )
    tally.broken.extend([*broken(tally), *findings])
    return tally


def of_kind(entries: Sequence[Entry], kind: type[Fact]) -> list[tuple[int, Fact]]:
    return [(entry.at, entry.record) for entry in entries if isinstance(entry.record, kind)]


Run = tuple[str, int]


def runs_of(entries: Sequence[Entry]) -> tuple[set[Run], set[Run]]:
    """Return the attempts at tool calls that began, and those whose outcome was recorded."""
    runs = {(e.call_id, e.attempt) for _, e in of_kind(entries, r.ToolStarted)}
    completed = {(e.call_id, e.attempt) for _, e in of_kind(entries, r.ToolCompleted)}
    failed = {(e.call_id, e.attempt) for _, e in of_kind(entries, r.ToolFailed)}
    return runs, completed | failed


def broken(tally: DemoCounts) -> list[str]:
    """Return a sentence for each promise that was not kept."""
    wrong = []
    if tally.model_calls_repeated:
        wrong.append(f"{tally.model_calls_repeated} recorded model calls were paid for again")
    if tally.effects_repeated:
        wrong.append(f"{tally.effects_repeated} effects happened more than once")
    if tally.effects_by_kind != WANTED:
        wrong.append(f"the job was not done: {tally.effects_by_kind} instead of {WANTED}")
    if tally.deliveries_lost:
        wrong.append(f"{tally.deliveries_lost} accepted deliveries were lost")
    if tally.deliveries_settled > tally.deliveries_sent - tally.deliveries_lost:
        wrong.append("a delivery was settled more than once")
    if tally.takeovers_missing:
        wrong.append("a killed worker's lane was never taken over")
    if tally.model_calls_cut_off > tally.kills:
        wrong.append("more model calls were cut off than workers were killed")
    return wrong
