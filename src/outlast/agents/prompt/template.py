"""A template: sections that fit together, checked when it is made.

Owns the tree of sections as paths, their parameters and their tools. Rendering is in `render.py`;
the tool by which a model opens a section is in `opening.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import Template
from typing import Any, get_args

from msgspec import Struct
from msgspec.structs import replace

from outlast.agents.planning.plan import Plan
from outlast.agents.planning.planning import Planning
from outlast.agents.prompt.opening import opening_tool
from outlast.agents.prompt.section import Params, PromptContext, Section, Visibility
from outlast.agents.runtime.context import InstructionContext
from outlast.agents.tool import Tool
from outlast.errors import InvalidDefinition

_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

BYTES_PER_TOKEN = 4
"""The characters of English text in one token, roughly, by providers' tokenizers."""


def about_tokens(text: str) -> int:
    """Return about how many tokens a text has, for any model."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


class PlacedSection(Struct, frozen=True):
    """A section in its place: `path` is its keys from the top, `level` counts those above."""

    path: str
    level: int
    section: Section
    tools: tuple[Tool, ...]
    children: tuple[PlacedSection, ...]


class PromptTemplate:
    """Instructions made of sections, rendered from the session's state before every model call.

    `params` are the values of `$names` in texts, or a function of the session that returns them. A
    template does not know of crashes: the session's state says what was done, so a fresh start and
    a resumption are one path. `count_tokens` counts exactly; without it tokens are estimated.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        *,
        params: Params | Callable[[InstructionContext[Any]], Params] | None = None,
        count_tokens: Callable[[str], int] = about_tokens,
    ) -> None:
        self.params = {} if params is None else params
        self.count_tokens = count_tokens
        if not callable(self.params) and not isinstance(self.params, Mapping):
            raise InvalidDefinition(
                "the params of a prompt have to be values by name, or a function"
            )
        self.sections = placed(checked_sections("a prompt", sections), "", 0, ())
        for each in self.walk():
            self._check_params(each)
        own = {tool.name: (tool, each) for each in self.walk() for tool in each.tools}
        self.section_of = {name: each.path for name, (_, each) in own.items()}
        self.tools = tuple(tool for tool, _ in own.values())
        summarised = [each for each in self.walk() if each.section.visibility != "full"]
        if summarised:
            self.tools = (*self.tools, opening_tool([each.path for each in summarised]))

    def __repr__(self) -> str:
        return f"PromptTemplate({', '.join(each.path for each in self.sections)})"

    def adding(self, *sections: Section) -> PromptTemplate:
        """Return a template with more sections behind these."""
        own = [each.section for each in self.sections]
        return PromptTemplate([*own, *sections], params=self.params, count_tokens=self.count_tokens)

    def walk(self) -> Iterator[PlacedSection]:
        """Yield all sections, each before its children."""
        left = [*reversed(self.sections)]
        while left:
            yield (each := left.pop())
            left += reversed(each.children)

    def _check_params(self, placed: PlacedSection) -> None:
        for text in (placed.section.body, placed.section.summary):
            if isinstance(text, str):
                names = params_of(text, placed.path)
                if not callable(self.params):
                    check_known(names, self.params, placed.path)


def filled(text: str, params: Params, path: str) -> str:
    """Return a text with the values of its parameters."""
    if "$" not in text:
        return text
    check_known(params_of(text, path), params, path)
    return Template(text).substitute(params)


def params_of(text: str, path: str) -> list[str]:
    """Return the names of the parameters in a text."""
    found = Template(text)
    if not found.is_valid():
        raise InvalidDefinition(
            f"the section {path} has a $ that begins no name: write $$ for the sign itself",
            section=path,
        )
    return found.get_identifiers()


def check_known(names: Sequence[str], params: Params, path: str) -> None:
    if unknown := [name for name in names if name not in params]:
        raise InvalidDefinition(
            f"the section {path} has the parameter ${unknown[0]}, and the params of its prompt are"
            f" {', '.join(params) or 'none'}: give a value for it, or write $$ for the sign itself",
            section=path,
            parameter=unknown[0],
        )


# How sections fit together


def placed(
    sections: Sequence[Section], above: str, level: int, ancestors: tuple[Section, ...]
) -> tuple[PlacedSection, ...]:
    """Return sections in their places. Raises InvalidDefinition for what does not fit."""
    found: dict[str, PlacedSection] = {}
    for section in sections:
        path = f"{above}.{section.key}" if above else section.key
        check_section(section, path, ancestors)
        if section.key in found:
            raise InvalidDefinition(
                f"there are two sections {path}: give one another key", section=path
            )
        children = checked_sections(f"the section {path}", section.children)
        # A section in the tail takes its children along.
        inherited = [replace(each, tail=each.tail or section.tail) for each in children]
        found[section.key] = PlacedSection(
            path,
            level,
            section,
            tools_of(section, path),
            placed(inherited, path, level + 1, (*ancestors, section)),
        )
    return tuple(found.values())


def checked_sections(whose: str, given: Any) -> Sequence[Section]:
    if not isinstance(given, list | tuple) or not all(isinstance(s, Section) for s in given):
        raise InvalidDefinition(f"the sections of {whose} are given in a list of Section(…)")
    return given


def check_section(section: Any, path: str, ancestors: tuple[Section, ...]) -> None:
    def refuse(why: str) -> InvalidDefinition:
        return InvalidDefinition(f"the section {path} {why}", section=path)

    if not isinstance(section.key, str) or not _KEY.fullmatch(section.key):
        raise InvalidDefinition(
            f"{section.key!r} cannot be the key of a section: begin with a letter, then letters,"
            " digits, _ and -, at most 64"
        )
    # A child that was added to a list of children later, and is one of those above.
    if any(section.children is each.children and section.children for each in ancestors):
        raise refuse("contains itself: take it out of its own children")
    if not isinstance(section.body, str) and not callable(section.body):
        raise refuse(f"has a body that is no text and no function: {section.body!r:.80}")
    if not isinstance(section.title, str) or not isinstance(section.summary, str):
        raise refuse("has a title or a summary that is no text")
    if not callable(section.visibility) and section.visibility not in get_args(Visibility):
        raise refuse(f'has a visibility that is not "full" or "summary": {section.visibility!r}')
    if section.visibility != "full" and not section.summary:
        raise refuse("is shown as a summary, and has none: give it summary=…")
    if section.depends_on is not None and not callable(section.body):
        raise refuse("is a text, which depends on no slices: leave depends_on out")
    if not all(isinstance(each, type) for each in section.depends_on or ()):
        raise refuse("depends_on classes of slices, in a list")


def tools_of(section: Section, path: str) -> tuple[Tool, ...]:
    if not isinstance(section.tools, list | tuple):
        raise InvalidDefinition(f"the tools of the section {path} have to be given in a list")
    return tuple(each if isinstance(each, Tool) else Tool(each) for each in section.tools)


# Instructions of every kind


def with_guidance(
    template: PromptTemplate, planning: Planning | None, skills: str
) -> PromptTemplate:
    """Return a template with what an agent is told that plans, or has skills.

    How far its plan is stands at the tail.
    """
    added: list[Section] = []
    if planning:
        added.append(Section("planning", planning.instructions.replace("$", "$$")))
    if skills:
        added.append(Section("skills", skills.replace("$", "$$")))
    if planning:
        tail = planning.tail
        added.append(Section("plan", lambda c: tail(c.session), depends_on=[Plan], tail=True))
    return template.adding(*added) if added else template


def template_of(instructions: Any) -> PromptTemplate:
    """Return instructions as a template: a text or a function becomes its only section."""
    if isinstance(instructions, PromptTemplate):
        return instructions
    if isinstance(instructions, str):
        return PromptTemplate([Section("instructions", instructions.replace("$", "$$"))])

    def body(ctx: PromptContext[Any]) -> Any:
        return instructions(ctx)

    return PromptTemplate([Section("instructions", body)])
