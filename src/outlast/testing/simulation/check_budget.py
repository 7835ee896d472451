"""Promises about budgets: nothing stays reserved, and no shared one is overdrawn."""

from collections.abc import Iterator

from msgspec.structs import asdict

from outlast.core import record as r
from outlast.core.amount import NOTHING, UNLIMITED, Amounts, BudgetKey
from outlast.testing.simulation.evidence import SimulationEvidence

COUNTED = ("model_calls", "tool_calls", "steps")
"""What a call reserves exactly; of tokens it may take more than was expected of it."""


def budgets_are_kept(evidence: SimulationEvidence) -> Iterator[str]:
    spent: dict[tuple[str, BudgetKey], Amounts] = {}
    for name, session in evidence.sessions.items():
        tenant = session.info.tenant
        for e in session.records(r.BudgetCharged):
            for key in e.budgets:
                spent[tenant, key] = spent.get((tenant, key), NOTHING) + e.spent
        yield from not_returned(name, session.records(r.BudgetCharged))
    for tenant, state in evidence.budgets:
        if state.reserved:
            yield f"of {state.key.text} of {tenant} {state.reserved} is reserved, and all rests"
        if state.spent != (due := spent.get((tenant, state.key), NOTHING)):
            yield f"of {state.key.text} of {tenant} {state.spent} is spent; by the logs it is {due}"
        limits, used = asdict(state.terms.limits), asdict(state.spent)
        for what in COUNTED:
            if limits[what] != UNLIMITED and used[what] > limits[what]:
                yield f"{state.key.text} of {tenant} allows {limits[what]} {what}: {used[what]}"


def not_returned(name: str, charges: list[r.BudgetCharged]) -> Iterator[str]:
    """Each reservation of a session comes to an end."""
    reserved = NOTHING
    for e in charges:
        reserved += e.reserved
    if reserved:
        yield f"{name}: {reserved} stays reserved"
