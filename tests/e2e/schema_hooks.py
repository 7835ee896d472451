"""What schemathesis needs to know: names of things that exist, and which streams have no end.

Loaded by the command `schemathesis`; the names come through the environment.
"""

from __future__ import annotations

import json
import os
from typing import Any

import schemathesis

KNOWN: dict[str, list[str]] = json.loads(os.environ.get("OUTLAST_KNOWN", "{}"))


@schemathesis.hook
def map_path_parameters(context: Any, path_parameters: Any) -> Any:
    """Put something that exists in the place of every second name that was made up."""
    is_erasure = context.operation.method == "delete"
    for name, values in KNOWN.items():
        made_up = str((path_parameters or {}).get(name, ""))
        if made_up and len(made_up) % 2 and not is_erasure:
            path_parameters[name] = values[len(made_up) % len(values)]
    return path_parameters


@schemathesis.hook
def map_query(context: Any, query: Any) -> Any:
    """Follow no stream: of a session that lives it would have no end."""
    query = query or {}
    if context.operation.path.endswith("/stream") and query.get("follow") in (None, "true"):
        query["follow"] = "false"
    if query.get("live") == "sse":
        query["live"] = "long-poll"
    if isinstance(query.get("wait"), int) and 0 < query["wait"] <= 30:
        query["wait"] = 0
    return query
