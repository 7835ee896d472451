"""Prompts made of sections: `Agent(instructions=PromptTemplate([…]))`.

Only names these for users; docs/how-to/prompts.md explains them.
"""

from outlast.agents.prompt.opening import OpenedSection
from outlast.agents.prompt.render import RenderedPrompt
from outlast.agents.prompt.section import PromptContext, Section, SectionFunction, Visibility
from outlast.agents.prompt.template import PlacedSection, PromptTemplate
from outlast.core.record import PromptSection

__all__ = [
    "OpenedSection",
    "PlacedSection",
    "PromptContext",
    "PromptSection",
    "PromptTemplate",
    "RenderedPrompt",
    "Section",
    "SectionFunction",
    "Visibility",
]
