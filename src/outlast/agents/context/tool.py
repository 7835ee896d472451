"""The tool by which a model reads a result again that is not told in full any more."""

from typing import Any

from outlast.agents.context.policy import ContextPolicy
from outlast.agents.runtime.context import Context
from outlast.agents.tool import Tool
from outlast.errors import ToolError

MOST = 20_000
"""So many characters are read at once."""
LONGEST_REFERENCE = 18


def reading_tool(policy: ContextPolicy) -> Tool:
    """Return the tool, which gives pieces that are themselves short enough to be told."""
    most = min(MOST, policy.longest_result // 2)

    async def read_result(ctx: Context[Any], reference: str, start: int = 0) -> str:
        """Read an earlier tool result of which you see only a part, or that was cleared.

        Args:
            reference: The reference that stands in its place.
            start: The character to begin at; a long result is read in pieces.
        """
        text = None
        if reference.isdecimal() and len(reference) <= LONGEST_REFERENCE:
            text = await ctx._journal.read_result(int(reference))
        if text is None:
            raise ToolError(f"there is no result with the reference {reference!r}")
        start = max(0, start)
        piece, left = text[start : start + most], len(text) - start - most
        more = f"\n[{left:,} more characters: call it again with start={start + most}]"
        return piece + more if left > 0 else piece

    return Tool(read_result, readonly=True)
