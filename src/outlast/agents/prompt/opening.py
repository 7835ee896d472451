"""The tool by which a model opens sections of which it sees a summary, and what it has opened.

The opened sections are a slice of the session, so a crash or a rollback leaves them as they were.
Sections are rendered in `render.py`.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from outlast.agents.runtime.context import Context, SessionContext
from outlast.agents.state.reducer import upsert_by
from outlast.agents.state.slice_type import slice_type
from outlast.agents.tool import Tool
from outlast.errors import ToolError

OPEN_SECTIONS = "open_sections"


@slice_type("opened_sections", reducer=upsert_by(lambda opened: opened.section))
class OpenedSection(Struct, frozen=True):
    """A section that the model has opened, by its path, and why."""

    section: str
    reason: str = ""


def opened_in(session: SessionContext) -> frozenset[str]:
    """Return the paths of the sections that are open in a session."""
    return frozenset(each.section for each in session.query(OpenedSection).all())


def opening_tool(paths: Sequence[str]) -> Tool:
    """Return the tool that opens these sections."""

    async def open_sections(ctx: Context[Any], sections: list[str], reason: str = "") -> str:
        """Show sections of your instructions in full of which you see only a summary.

        Args:
            sections: Their names, as the summaries give them.
            reason: What you need them for.
        """
        if unknown := [each for each in sections if each not in paths]:
            raise ToolError(
                f"there is no section {', '.join(unknown)} to open; there is: {', '.join(paths)}"
            )
        if not sections:
            raise ToolError(f"name the sections to open: {', '.join(paths)}")
        for each in sections:
            ctx.session.mutate(OpenedSection).dispatch(OpenedSection(each, reason))
        return f"Open from now on in your instructions: {', '.join(sections)}."

    return Tool(open_sections, idempotent=True)
