"""Every promise that a run of chaos is held against, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from chaos import check_call, check_delivery, check_owner, check_run, check_time
from chaos.evidence import Evidence

Check = Callable[[Evidence], Iterator[str]]


def verify_finds_nothing(evidence: Evidence) -> Iterator[str]:
    yield from evidence.findings


def nobody_complains(evidence: Evidence) -> Iterator[str]:
    """Users got what they were told, workers met nothing unforeseen, and all came to rest."""
    yield from evidence.complaints
    yield from (f"worker {mark.pid}: {mark.key}" for mark in evidence.marked("lost"))


CHECKS: tuple[Check, ...] = (
    check_delivery.every_receipt_is_in_the_log,
    check_delivery.every_delivery_is_settled_once,
    check_delivery.turns_keep_the_order_of_arrival,
    check_delivery.readers_saw_the_log,
    check_delivery.logs_grow,
    check_call.recorded_work_never_reruns,
    check_call.recorded_steps_never_rerun,
    check_call.no_tool_fails,
    check_call.unknown_effects_are_not_repeated,
    check_call.reconciled_effects_happen_once,
    check_call.no_call_runs_twice_at_once,
    check_call.transactions_happen_once,
    check_call.tool_lanes_are_serial,
    check_run.runs_are_done_once,
    check_run.undo_runs_in_reverse,
    check_run.transactional_steps_leave_their_row,
    check_owner.fences_grow,
    check_owner.the_living_keep_their_lanes,
    check_owner.only_the_dead_are_passed_over_early,
    check_time.timers_never_fire_early,
    check_time.dates_never_fall,
    verify_finds_nothing,
    nobody_complains,
)


def check(evidence: Evidence) -> dict[str, list[str]]:
    """Return what each check found, those that found nothing included."""
    return {each.__name__.replace("_", " "): list(each(evidence)) for each in CHECKS}
