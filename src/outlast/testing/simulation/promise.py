"""The ten promises and the limits, each held against what happened.

Owns only the list. Each promise is a function of the evidence (`evidence.py`) in one of the
`check_*.py` beside this, which yields what broke it.
"""

from collections.abc import Callable, Iterator

from msgspec import Struct

from outlast.testing.simulation.check_anchor import anchors_hold
from outlast.testing.simulation.check_budget import budgets_are_kept
from outlast.testing.simulation.check_call import (
    interrupted_effects_are_not_repeated,
    recorded_work_never_reruns,
    transactions_are_recorded,
)
from outlast.testing.simulation.check_child import children_are_started_once
from outlast.testing.simulation.check_context import views_are_bounded
from outlast.testing.simulation.check_deployment import deployments_hold
from outlast.testing.simulation.check_limit import limits_hold
from outlast.testing.simulation.check_log import (
    all_work_ends,
    cost_is_linear,
    logs_and_indexes_agree,
    models_are_shown_the_log,
    only_the_owner_writes,
    transitions_are_whole,
)
from outlast.testing.simulation.check_provider import outages_are_waited_out
from outlast.testing.simulation.check_queue import queues_hold
from outlast.testing.simulation.check_rule import rules_are_heeded
from outlast.testing.simulation.check_sign_in import sign_ins_are_ones_own
from outlast.testing.simulation.check_state import state_is_kept
from outlast.testing.simulation.check_usage import usage_adds_up
from outlast.testing.simulation.check_user import (
    nothing_accepted_is_lost,
    readers_see_what_is_kept,
    sessions_are_found_by_their_tags,
    waiting_is_free,
)
from outlast.testing.simulation.check_wait import callers_are_quoted, waits_end_in_their_time
from outlast.testing.simulation.check_workflow import runs_are_done_once
from outlast.testing.simulation.evidence import SimulationEvidence

PromiseCheck = Callable[[SimulationEvidence], Iterator[str]]

PROMISES: dict[str, PromiseCheck] = {
    "1 one log": logs_and_indexes_agree,
    "2 one commit per transition": transitions_are_whole,
    "3 recovery is the normal path": all_work_ends,
    "4 recorded work never re-runs": recorded_work_never_reruns,
    "5 an interrupted effect is never repeated silently": interrupted_effects_are_not_repeated,
    "6 one writer": only_the_owner_writes,
    "7 nothing accepted is lost": nothing_accepted_is_lost,
    "8 a reader never sees what a crash can take back": readers_see_what_is_kept,
    "9 waiting is free": waiting_is_free,
    "10 cost is linear": cost_is_linear,
    "models are shown the log": models_are_shown_the_log,
    "views are bounded": views_are_bounded,
    "transactions are recorded": transactions_are_recorded,
    "limits hold": limits_hold,
    "queues hold": queues_hold,
    "deployments hold": deployments_hold,
    "anchors hold": anchors_hold,
    "children are started once": children_are_started_once,
    "waits end once, in their time": waits_end_in_their_time,
    "callers are quoted": callers_are_quoted,
    "sign-ins are one's own": sign_ins_are_ones_own,
    "outages are waited out": outages_are_waited_out,
    "rules are heeded": rules_are_heeded,
    "usage adds up": usage_adds_up,
    "budgets are kept": budgets_are_kept,
    "state changes are kept": state_is_kept,
    "tags find their sessions": sessions_are_found_by_their_tags,
    "runs are done once": runs_are_done_once,
}


class Violation(Struct, frozen=True):
    """A promise that was broken, and how that shows."""

    promise: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


def broken_promises(evidence: SimulationEvidence) -> list[Violation]:
    """Return everything that should not have happened."""
    return [
        Violation(promise, what)
        for promise, check_promises in PROMISES.items()
        for what in check_promises(evidence)
    ]
