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

    Its server is asked again later, durably, if it is away for more than `timeout`. `agent` is its
    name there, if it differs; `token` is a key with the scopes read, send and approve;
    `output_type` is that of its answers. The first look at its session comes after `poll`, the next
    ones less and less often.
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
