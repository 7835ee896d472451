"""The texts in the code of tools and workflows, and the waits that can be of them.

Calls no code of the user's: it goes by the texts alone, and says no only where none can be meant.
"""

from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, Protocol

import msgspec

from outlast.core.lane import OpenRequest

SHORTEST_WORDS = 4
"""A text of fewer characters in a tool's code says nothing about what it asks."""


class HasFunction(Protocol):
    """A tool or a workflow."""

    @property
    def function(self) -> Any: ...


def is_own(request: OpenRequest) -> bool:
    """Say whether a tool asked it by itself, in words that the log has."""
    return request.is_question and bool(request.name and request.asked) and not request.origin


def asks(tool: HasFunction, request: OpenRequest) -> bool:
    """Say whether the texts in a tool's code can be those of a question, or its name.

    It is not called, so this goes by the texts alone: it says no only where none of them is in the
    question, and none is its name.
    """
    texts = [text for text in texts_of(tool.function) if len(text.strip()) >= SHORTEST_WORDS]
    if not texts or is_named(request):
        return not texts or any(text in request.name for text in texts)
    return any(text.strip() in request.asked for text in texts)


def is_given(args: str, request: OpenRequest) -> bool:
    """Say whether a text of the call's arguments is in a question: then no code has its words."""
    waiting: list[Any] = [msgspec.json.decode(args) if args else None]
    while waiting:
        match waiting.pop():
            case str(text) if len(text.strip()) >= SHORTEST_WORDS and text.strip() in request.asked:
                return True
            case list(each):
                waiting += each
            case dict(each):
                waiting += each.values()
    return False


def is_named(request: OpenRequest) -> bool:
    """Say whether the author gave the wait a name; a digest of what it asks begins with `=`."""
    return ":=" not in request.name


def texts_of(function: Any) -> Iterator[str]:
    """Yield the texts in the code of a function, and of the functions that it may call.

    Those that it has from its module, from its defaults and from the function around it are its
    own, too.
    """
    seen: set[CodeType] = set()
    waiting: list[Any] = [function]
    while waiting:
        each = waiting.pop()
        each = getattr(each, "function", each)
        if isinstance(each, str):
            yield each
        elif isinstance(each, tuple | list):
            waiting += each
        elif isinstance(each, FunctionType) and each.__code__ not in seen:
            codes = [*codes_in(each.__code__)]
            # Functions may call one another in a circle.
            seen.update(codes)
            waiting += [const for code in codes for const in code.co_consts]
            waiting += [each.__globals__.get(name) for code in codes for name in code.co_names]
            waiting += [*(each.__defaults__ or ()), *around(each)]


def around(function: FunctionType) -> Iterator[Any]:
    """Yield what a function has from the function around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # nothing is in it yet
            yield cell.cell_contents


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function, and of the functions and comprehensions in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_in(const)


def waits_for_event(flow: HasFunction, name: str) -> bool:
    """Say whether a body can wait for an event: its name, or a part of that, is in its code."""
    texts = list(texts_of(flow.function))
    parts = [text for text in texts if len(text) >= SHORTEST_WORDS]
    return any(name in text for text in texts) or any(part in name for part in parts)
