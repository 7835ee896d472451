"""Budgets: `Agent(budget=…)`, `app.start(budget=…)`, `Limits(turn_budget=…)`, `app.budgets`.

Only names these for users; docs/how-to/budgets.md explains them.
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
