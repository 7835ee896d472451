"""The texts in the code of tools and workflows, and the waits that can be of them.

Calls no code of the user's: it goes by the texts alone, and says no only where none can be meant
and `code_reading.py` finds that the source hides none.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from types import CodeType, FunctionType
from typing import Any, Protocol

import msgspec

from outlast.core.lane import OpenRequest
from outlast.core.name import quoted
from outlast.session.code_reading import SourceReading, is_telling


class HasFunction(Protocol):
    """A tool or a workflow."""

    @property
    def function(self) -> Any: ...


def is_own(request: OpenRequest) -> bool:
    """Say whether a tool asked it by itself, in words that the log has."""
    return request.is_question and bool(request.name and request.asked) and not request.origin


def asks(tool: HasFunction, request: OpenRequest) -> bool | None:
    """Say whether the texts in a tool's code can be those of a question, or its name.

    It is not called, so this goes by the texts alone: it says no only where none of them is in the
    question, and none is its name. None says that its code does not show what it asks.
    """
    reading = SourceReading(tool.function)
    texts = [*texts_of(tool.function), *reading.texts]
    if is_named(request):
        # A short name has to be the whole of it; a long text may be a part.
        parts = re.split("[/#~:]", request.name)
        is_there = any(quoted(text) in parts for text in texts if text) or any(
            quoted(text) in request.name for text in texts if is_telling(text)
        )
    else:
        is_there = any(text.strip() in request.asked for text in texts if is_telling(text))
    return is_there or (False if reading.is_whole else None)


def is_given(args: str, request: OpenRequest) -> bool:
    """Say whether a text of the call's arguments is in a question: then no code has its words."""
    waiting: list[Any] = [msgspec.json.decode(args) if args else None]
    while waiting:
        match waiting.pop():
            case str(text) if is_telling(text) and text.strip() in request.asked:
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
        elif isinstance(each, tuple | list | frozenset | set):
            waiting += each
        elif isinstance(each, dict):
            waiting += [text for pair in each.items() for text in pair if isinstance(text, str)]
        elif isinstance(each, type) and issubclass(each, Enum):
            waiting += [member.value for member in each]
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


def waits_for_event(flow: HasFunction, name: str) -> bool | None:
    """Say whether a body can wait for an event: its name, or a part of that, is in its code.

    None says that its code does not show for which events it waits.
    """
    reading = SourceReading(flow.function)
    texts = [*texts_of(flow.function), *reading.texts]
    is_there = any(name in text for text in texts) or any(
        text in name for text in texts if is_telling(text)
    )
    return is_there or (False if reading.is_whole else None)
