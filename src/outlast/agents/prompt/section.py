"""Sections: the pieces that a prompt is made of, as their authors write them.

Owns the definition of one section and the context of its function. Whether sections fit together
is checked by `template.py`; what they say to a session is found by `render.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from typing_extensions import TypeVar

from outlast.agents.runtime.context import InstructionContext, SessionContext
from outlast.agents.tool import Function, Tool

Deps = TypeVar("Deps", default=Any)

Visibility = Literal["full", "summary"]
"""How much of a section is shown: all of it, or its summary until the model opens it."""

Params = Mapping[str, Any]


class PromptContext(InstructionContext[Deps]):
    """The argument of a section's functions: the session, the worker's deps, the parameters."""

    def __init__(self, deps: Deps, session: SessionContext, params: Params) -> None:
        super().__init__(deps, session)
        self.params = params


SectionText = str | None | Awaitable[str | None]
SectionFunction = Callable[[PromptContext[Any]], SectionText]


class Section(Struct, frozen=True):
    """A piece of a prompt. Its `key` is unique among its siblings.

    The `body` is a text with `$params`, or a function of the session that returns one; if it
    returns nothing, the section is left out with its children and tools. With
    `visibility="summary"` only the `summary` is shown until the model opens the section; a function
    may decide. The `tools` are offered while the section is shown in full. A function is called
    before every model call, unless it `depends_on` slices: then only when one of these has changed.
    A section at the `tail` stands behind the conversation, so a change of its text leaves the
    provider's cache valid.
    """

    key: str
    body: str | SectionFunction = ""
    title: str = ""
    summary: str = ""
    visibility: Visibility | Callable[[PromptContext[Any]], Visibility] = "full"
    children: Sequence[Section] = ()
    tools: Sequence[Tool | Function] = ()
    depends_on: Sequence[type] | None = None
    tail: bool = False
