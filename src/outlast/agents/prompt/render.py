"""Renders a template for a session: which sections are shown, what they say, which tools go along.

Owns what is kept of sections that have not changed. Knows nothing of models; what a rendered prompt
looks like in the log is `core/prompt.py`'s.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from msgspec import Struct

from outlast.agents.prompt.opening import OPEN_SECTIONS, opened_in
from outlast.agents.prompt.section import Params, PromptContext, Visibility
from outlast.agents.prompt.template import (
    PlacedSection,
    PromptTemplate,
    filled,
)
from outlast.agents.runtime.context import InstructionContext, SessionContext
from outlast.agents.runtime.loop_watch import LoopWatch, answer_of
from outlast.agents.state.slice_type import type_of
from outlast.core.message import check_text
from outlast.core.prompt import section_digest
from outlast.core.record import PromptSection
from outlast.core.slice import values_of
from outlast.errors import InvalidDefinition

MOST_KEPT = 4096
"""So many texts of sections are kept in a worker, those that were used last."""

TO_OPEN = f'(This is a summary. For all of it, call {OPEN_SECTIONS} with "{{path}}".)'


class RenderedPrompt(Struct, frozen=True):
    """A prompt as a model is given it: `instructions` before the conversation, `tail` behind it.

    `sections` are its pieces in their order; a plain text has none. `hidden` are the tools that are
    not offered, by name, with the section that each belongs to.
    """

    instructions: str
    tail: str = ""
    sections: tuple[PromptSection, ...] = ()
    hidden: Mapping[str, str] = {}


def joined(sections: Iterable[PromptSection], *, tail: bool) -> str:
    return "\n\n".join(each.text for each in sections if each.tail is tail)


class PromptRenderer:
    """One agent's template in one worker."""

    def __init__(
        self, template: PromptTemplate, deps: Any = None, watch: LoopWatch | None = None
    ) -> None:
        self.template = template
        self._watch = watch
        self._deps = deps
        self._kept: OrderedDict[tuple[str, str], tuple[Any, str | None]] = OrderedDict()

    async def render(self, session: SessionContext) -> RenderedPrompt:
        """Return the prompt as the session's state makes it now."""
        params = await self._params(InstructionContext(self._deps, session))
        ctx = PromptContext(self._deps, session, params)
        opened = opened_in(session) if self.template.tools else frozenset()
        shown: list[PromptSection] = []
        offered: set[str] = set()
        for each in self.template.sections:
            await self._render(each, ctx, opened, shown, offered)
        names = self.template.section_of
        hidden = {name: path for name, path in names.items() if name not in offered}
        told = joined(shown, tail=False), joined(shown, tail=True)
        return RenderedPrompt(*told, tuple(shown), hidden)

    async def _params(self, ctx: InstructionContext[Any]) -> Params:
        """Return the parameters of the prompt for a session."""
        params = self.template.params
        if not callable(params):
            return params
        given = await answer_of(self._watch, params, ctx, section="params")
        if not isinstance(given, Mapping):
            raise InvalidDefinition(f"the params of a prompt are values by name, not {given!r:.80}")
        return given

    async def _render(
        self,
        placed: PlacedSection,
        ctx: PromptContext[Any],
        opened: frozenset[str],
        shown: list[PromptSection],
        offered: set[str],
    ) -> None:
        is_summary = placed.path not in opened and await self._is_summarised(placed, ctx)
        body = summary_of(placed, ctx.params) if is_summary else await self._body(placed, ctx)
        if body is None:
            return
        place = len(shown)
        if not is_summary:
            offered.update(tool.name for tool in placed.tools)
            for child in placed.children:
                await self._render(child, ctx, opened, shown, offered)
        if body or len(shown) > place:  # a title alone says nothing
            shown.insert(place, section_of(placed, body, is_summary))

    async def _body(self, placed: PlacedSection, ctx: PromptContext[Any]) -> str | None:
        section = placed.section
        if isinstance(section.body, str):
            return filled(section.body, ctx.params, placed.path)
        if section.depends_on is None:
            return await self._call(placed, ctx)
        slices = ctx.session._state.slices
        read = [values_of(slices, type_of(each).name) for each in section.depends_on]
        made_of, place = (read, dict(ctx.params)), (ctx.session.id, placed.path)
        kept = self._kept.get(place)
        if kept is None or kept[0] != made_of:
            kept = made_of, await self._call(placed, ctx)
            self._kept[place] = kept
        self._kept.move_to_end(place)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return kept[1]

    async def _call(self, placed: PlacedSection, ctx: PromptContext[Any]) -> str | None:
        assert callable(placed.section.body)
        try:
            text = await answer_of(self._watch, placed.section.body, ctx, section=placed.path)
        except Exception as error:
            error.add_note(f"in the section {placed.path} of the prompt")
            raise
        if text is not None and not isinstance(text, str):
            raise InvalidDefinition(
                f"the section {placed.path} returned {text!r:.80}, and not a text or None",
                section=placed.path,
            )
        return text or None

    async def _is_summarised(self, placed: PlacedSection, ctx: PromptContext[Any]) -> bool:
        found: Any = placed.section.visibility
        if callable(found):
            found = await answer_of(self._watch, found, ctx, section=placed.path)
            if found not in get_args(Visibility):
                raise InvalidDefinition(
                    f'the visibility of the section {placed.path} is "full" or "summary", not'
                    f" {found!r:.80}",
                    section=placed.path,
                )
        return bool(found == "summary")


def summary_of(placed: PlacedSection, params: Params) -> str:
    text = filled(placed.section.summary, params, placed.path)
    return f"{text}\n{TO_OPEN.format(path=placed.path)}"


def section_of(placed: PlacedSection, body: str, is_summary: bool) -> PromptSection:
    """Return a section as a model reads it: a heading as deep as it stands, then its text."""
    title = placed.section.title
    heading = f"{'#' * min(6, placed.level + 2)} {title}" if title else ""
    text = check_text(f"the section {placed.path}", "\n\n".join(filter(None, [heading, body])))
    return PromptSection(
        placed.path, section_digest(text), text, placed.section.tail, summary=is_summary
    )
