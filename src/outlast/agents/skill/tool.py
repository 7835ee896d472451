"""The tools by which a model loads skills, and what it is told of those that there are.

A slice of the session names the loaded skills, each by its content hash and by the call whose
result has the text. So that text is in the log once, and stays in the model's view whatever else is
left out. The tools only read, so one that a crash cut off is simply run again.
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from msgspec import Struct

from outlast.agents.runtime.context import Context
from outlast.agents.skill.folder import read_text
from outlast.agents.skill.skill import SKILL_FILE, Skill
from outlast.agents.state.reducer import upsert_by
from outlast.agents.state.slice_type import slice_type
from outlast.agents.tool import Tool, ToolResult
from outlast.core.compaction import SKILLS
from outlast.errors import InvalidSkill, ToolError

MOST_LISTED = 200

GUIDANCE = """\
## Skills

Each skill has instructions for a kind of task. When a task fits one, call `load_skill` with its
name before you begin, and do as it says; load none that you do not need.

{skills}"""


@slice_type(SKILLS, reducer=upsert_by(lambda loaded: (loaded.skill, loaded.path)))
class LoadedSkill(Struct, frozen=True):
    """A file of a skill as the model has read it: its SHA-256, and the call that gave it."""

    skill: str
    digest: str
    call_id: str
    path: str = SKILL_FILE


def guidance_of(skills: Mapping[str, Skill]) -> str:
    """Return what a model is told of its skills, the same at all times."""
    if not skills:
        return ""
    listed = "\n".join(f"- {each.name}: {each.description}" for each in skills.values())
    return GUIDANCE.format(skills=listed)


def skill_tools(skills: Mapping[str, Skill]) -> list[Tool]:
    """Return the tools by which these skills are loaded."""

    def found(name: str) -> Skill:
        if skill := skills.get(name):
            return skill
        raise ToolError(f"there is no skill {name!r}; there is: {', '.join(skills)}")

    async def load_skill(ctx: Context[Any], skill: str) -> ToolResult[LoadedSkill]:
        """Load a skill: read its instructions before you begin what it is for.

        Args:
            skill: The name of the skill.
        """
        known = found(skill)
        return ToolResult(told(known), LoadedSkill(known.name, known.digest, ctx.call_id))

    async def read_skill_file(ctx: Context[Any], skill: str, path: str) -> ToolResult[LoadedSkill]:
        """Read a file of a skill, where its instructions name one.

        Args:
            skill: The name of the skill.
            path: The file's path, as the skill lists it, such as references/forms.md.
        """
        known = found(skill)
        try:
            text, data = read_text(known.folder, path)
        except InvalidSkill as error:
            raise ToolError(error.message.replace(str(known.folder), known.name)) from None
        loaded = LoadedSkill(known.name, sha256(data).hexdigest(), ctx.call_id, path)
        return ToolResult(text, loaded)

    if not skills:
        return []
    tools: list[Tool] = [Tool(load_skill, idempotent=True)]
    if any(each.files for each in skills.values()):
        tools.append(Tool(read_skill_file, idempotent=True))
    return tools


def told(skill: Skill) -> str:
    """Return what a model reads when it loads a skill."""
    parts = [f"# Skill: {skill.name}", skill.body or skill.description]
    if skill.files:
        listed = [f"- {each.path} ({each.size:,} bytes)" for each in skill.files[:MOST_LISTED]]
        if more := len(skill.files) - len(listed):
            listed.append(f"- and {more:,} more")
        parts.append("Its files, to be read with read_skill_file:\n" + "\n".join(listed))
    return "\n\n".join(parts)
