"""Prices and usage: `ModelOptions(prices=…)`, `app.usage`, `result.usage`.

What they are is told in docs/how-to/usage.md.
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
