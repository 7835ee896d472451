"""Prices and usage: `ModelOptions(prices=…)`, `app.usage`, `result.usage`.

Only names these for users; docs/how-to/usage.md explains them.
"""

from outlast.agents.model.price import ModelPrice, OnUnknownPrice, Prices
from outlast.core.record import UsageSum
from outlast.core.usage import TreeUsage
from outlast.session.usage import UsageControl
from outlast.store.usage import UsageKey, UsageLine

__all__ = [
    "ModelPrice",
    "OnUnknownPrice",
    "Prices",
    "TreeUsage",
    "UsageControl",
    "UsageKey",
    "UsageLine",
    "UsageSum",
]
