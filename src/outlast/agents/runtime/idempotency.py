"""The key under which a call must not happen twice, as its tool makes it of the arguments."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

from outlast.agents.tool import Tool
from outlast.core.lane import Lane, OpenCall
from outlast.core.name import storable_key
from outlast.core.record import IdempotencyKey
from outlast.errors import InvalidDefinition


def read(tool: Tool, call: OpenCall, lane: Lane) -> tuple[dict[str, Any], str]:
    """Return a call's arguments and its own key, or raise what stands against running it."""
    args = tool.arguments.parse(call.args)
    tool.bounds(args, lane.tenant)
    if tool.idempotency_key is None:
        return args, ""
    scope = blake2b(scope_of(tool, lane).encode(), digest_size=10).hexdigest()
    return args, f"{scope}:{own_key(tool, args)}"


def dedupe_of(tool: Tool, args: dict[str, Any], lane: Lane) -> IdempotencyKey | None:
    """Return the key under which a call must not happen twice, if it has one."""
    if not tool.dedupe:
        return None
    return IdempotencyKey(scope_of(tool, lane), own_key(tool, args))


def scope_of(tool: Tool, lane: Lane) -> str:
    """Return where a key of the tool's own means the same."""
    return f"session:{lane.session}" if tool.dedupe == "session" else f"tenant:{lane.tenant}"


def own_key(tool: Tool, args: dict[str, Any]) -> str:
    assert tool.idempotency_key is not None
    key = tool.idempotency_key(args)
    if isinstance(key, bool) or not isinstance(key, str | int) or key == "":
        raise InvalidDefinition(
            f"the idempotency_key of {tool.name} returned {key!r}: it has to be a text or a whole"
            " number that two calls share only if they are the same",
            tool=tool.name,
        )
    return f"{tool.name}:{storable_key(str(key))}"
