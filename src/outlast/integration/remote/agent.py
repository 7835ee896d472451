"""A remote agent as users define it: its name, its address, and the token for it.

Knows nothing of sessions and children; `host.py` does.
"""

from typing import Any

from outlast.agents.runtime.context import Context, subagent_of
from outlast.agents.subagent import asking_tool
from outlast.agents.tool import Tool
from outlast.agents.validation import checked_name
from outlast.core.instant import Span
from outlast.core.setting import seconds_of
from outlast.integration.remote.host import RemoteHost
from outlast.integration.remote.peer import Peer


class RemoteAgent:
    """An agent behind another server; give it to `Agent(subagents=…)`.

    `agent` is what it is called there, if not by the same name; `token` is a key with the scopes
    read, send and approve. `output_type` is that of its answers. A server that is away for
    more than `timeout` is tried again later, holding nothing meanwhile. The first look
    at what it does comes after `poll`, the next ones after more and more.
    """

    def __init__(
        self,
        name: str,
        url: str,
        token: str | None = None,
        *,
        agent: str = "",
        description: str = "",
        output_type: type | None = None,
        timeout: Span = 10.0,
        poll: Span = 2.0,
    ) -> None:
        self.name = checked_name(name)
        self.description = description
        self.output_type = output_type
        peer = Peer(url, token, agent or name, seconds_of("timeout", timeout))
        self.host = RemoteHost(name, peer, token, output_type, seconds_of("poll", poll))

    def __repr__(self) -> str:
        return f"RemoteAgent({self.name!r})"

    def as_tool(self) -> Tool:
        """Return the tool by which a model hands work to it."""

        async def ask(ctx: Context[Any], message: str) -> Any:
            return await subagent_of(ctx, self.host.ref()).ask(message)

        return asking_tool(ask, self.name, self.description)
