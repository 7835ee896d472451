"""Whether a session's log keeps its promises, and whether the indexes beside it agree with it.

Folds the log from zero through the Store contract and believes nothing else. Writes
nothing, and mends nothing: it says what is wrong, and where.
"""

from outlast.log.verify.budget import verify_budgets
from outlast.log.verify.rule import Finding
from outlast.log.verify.session import verify

__all__ = ["Finding", "verify", "verify_budgets"]
