"""Budgets: `Agent(budget=…)`, `app.start(budget=…)`, `Limits(turn_budget=…)`, `app.budgets`.

What they are is told in docs/how-to/budgets.md.
"""

from outlast.agents.budget import Budget
from outlast.core.amount import Amounts, OnBudgetEnd, OnUnpriced
from outlast.session.budget import BudgetControl, BudgetStatus

__all__ = [
    "Amounts",
    "Budget",
    "BudgetControl",
    "BudgetStatus",
    "OnBudgetEnd",
    "OnUnpriced",
]
