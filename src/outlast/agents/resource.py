"""The resources that a tool's call reads or writes, as its author names them in `@tool`.

A resource is known by a text: a path, an id, an address. Two tools speak of the same one if they
give the same text, whatever their arguments are called.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from outlast.core.name import storable_key
from outlast.errors import InvalidDefinition

Resources = str | Sequence[str] | Callable[[dict[str, Any]], Any]
"""The arguments whose values name the resources, or a function of all arguments."""
KeysOf = Callable[[Mapping[str, Any]], tuple[str, ...]]


def no_keys(_: Mapping[str, Any]) -> tuple[str, ...]:
    return ()


def keys_of(tool: str, what: str, given: Any, known: Iterable[str]) -> KeysOf:
    """Return the function that says which resources a call is about; `known` are its arguments."""
    if given is None:
        return no_keys
    if callable(given):
        return lambda args: texts(tool, what, given(dict(args)))
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidDefinition(
            f"{what} of {tool} names arguments, or is a function of them, not {given!r}", tool=tool
        )
    arguments = [*known]
    if unknown := [name for name in names if name not in arguments]:
        raise InvalidDefinition(
            f"{what} of {tool} names {', '.join(unknown)}, and its arguments are"
            f" {', '.join(arguments) or 'none'}: use these",
            tool=tool,
        )
    return lambda args: tuple(key for name in names for key in texts(tool, what, args.get(name)))


def texts(tool: str, what: str, found: Any) -> tuple[str, ...]:
    """Return resources as texts: none, one or several."""
    if found is None:
        return ()
    if isinstance(found, Iterable) and not isinstance(found, str | bytes | Mapping):
        return tuple(key for each in found for key in texts(tool, what, each))
    if isinstance(found, bytes | Mapping | bool) or not str(found):
        raise InvalidDefinition(
            f"{what} of {tool} gave {found!r}: a resource is known by a text or a number",
            tool=tool,
        )
    return (storable_key(str(found)),)
