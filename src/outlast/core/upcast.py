"""Old records read as today's. Stored bytes are never rewritten.

`STEPS[n]` says, per record type, how its plain values change from format n to n + 1. A type that
is not named did not change. There is no step yet: until the first release the format is 1.
"""

from collections.abc import Callable
from typing import Any

Values = dict[str, Any]

STEPS: dict[int, dict[str, Callable[[Values], Values]]] = {}


def upcast(values: Values, version: int) -> Values:
    """Return a record's plain values as the current format has them."""
    for each in range(version, max(STEPS, default=0) + 1):
        if step := STEPS.get(each, {}).get(values["type"]):
            values = step(values)
    return values
