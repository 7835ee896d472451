"""Skills for an agent: `Agent(skills="skills/")`. How is told in docs/how-to/skills.md."""

from outlast.agents.skill.folder import SkillFile
from outlast.agents.skill.skill import Skill, SkillPath, SkillSource, read_skill
from outlast.agents.skill.tool import LoadedSkill

__all__ = ["LoadedSkill", "Skill", "SkillFile", "SkillPath", "SkillSource", "read_skill"]
