"""Skills for an agent: `Agent(skills="skills/")`.

Only names these for users; docs/how-to/skills.md explains them.
"""

from outlast.agents.skill.folder import SkillFile
from outlast.agents.skill.skill import Skill, SkillPath, SkillSource, read_skill
from outlast.agents.skill.tool import LoadedSkill

__all__ = ["LoadedSkill", "Skill", "SkillFile", "SkillPath", "SkillSource", "read_skill"]
