"""Old records read as today's. Stored bytes are never rewritten.

`STEPS[n]` says, per record type, how its plain values change from format n to n + 1.
A type that is not named did not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Values = dict[str, Any]


def tool_failed_1(values: Values) -> Values:
    """Format 1 had a sentence where format 2 has a code and a sentence."""
    error = values["error"]
    if isinstance(error, str):
        return {**values, "error": {"code": "TOOL_ERROR", "message": error}}
    return values


STEPS: dict[int, dict[str, Callable[[Values], Values]]] = {
    1: {"tool.failed": tool_failed_1},
}


def upcast(values: Values, version: int) -> Values:
    """Return a record's plain values as the current format has them."""
    for each in range(version, max(STEPS) + 1):
        if step := STEPS.get(each, {}).get(values["type"]):
            values = step(values)
    return values
