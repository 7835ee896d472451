"""The type that a tool says it returns, as a check of what it has returned.

Made once, when the tool is defined. A check looks and changes nothing: what is stored is what the
tool returned. What has no check of its own here (`Any`, a type variable, a callable, a protocol) is
not looked at. How a value becomes JSON is in `runtime/json_value.py`.
"""

import types
import typing
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Mapping,
    Sequence,
    Set,
)
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as fields_of
from inspect import formatannotation
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, Union

import msgspec
from typing_extensions import ReadOnly, TypeAliasType, is_typeddict

from outlast.agents.runtime.json_value import a_type


class Misfit(NamedTuple):
    """A part of a value that is not of its type: where it is, what it should be, and what it is."""

    path: str
    declared: str
    found: Any


Check = Callable[[Any], Misfit | None]
"""Returns what does not fit, if anything."""

UNCHECKED = (Any, object, typing.NoReturn, typing.Never)
AWAITED = (Awaitable, Coroutine)
QUALIFIERS = (Annotated, Required, NotRequired, ReadOnly)
UNIONS = (Union, types.UnionType)
NO_CLASS_OF_A_VALUE = (type, Callable)


class ReturnType:
    """The declared return type of a function. `unwrapped` types are not looked at."""

    def __init__(self, hint: Any, unwrapped: tuple[type, ...] = ()) -> None:
        self._check = CheckBuilder(unwrapped).build(hint)
        self._declared = name_of(hint)

    def misfit(self, value: Any) -> str:
        """Say what a value is that is not of this type, and where; nothing if it is of it."""
        found = self._check(value) if self._check else None
        if found is None:
            return ""
        is_a = a_type(type(found.found))
        if not found.path:
            return f"returned {is_a}, and is declared to return {self._declared}"
        return (
            f"is declared to return {self._declared}, and returned {a_type(type(value))} whose"
            f" {found.path} is {is_a} instead of {found.declared}"
        )


def name_of(hint: Any) -> str:
    """Return a type as its author wrote it, without the modules of classes."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else short(hint)


def short(hint: Any) -> str:
    text = formatannotation(hint)
    for part in {type(None), *classes_in(hint)}:
        text = text.replace(f"{part.__module__}.{part.__qualname__}", part.__name__)
    return text.replace("NoneType", "None")


def classes_in(hint: Any) -> set[type]:
    found = {hint} if isinstance(hint, type) else set()
    return found.union(*(classes_in(arg) for arg in typing.get_args(hint)))


class CheckBuilder:
    """Makes checks of annotations. A type that holds itself has one check, made once."""

    def __init__(self, unwrapped: tuple[type, ...]) -> None:
        self._unwrapped = unwrapped
        self._made: dict[type, Check] = {}

    def build(self, hint: Any) -> Check | None:
        """Return the check of an annotation; None if its values are not looked at."""
        if isinstance(hint, TypeAliasType):
            return self.build(hint.__value__)
        if isinstance(hint, typing.NewType):
            return self.build(hint.__supertype__)
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if hint in UNCHECKED or hint in self._unwrapped or origin in self._unwrapped:
            return None
        if hint is None or hint is type(None):
            return of_class(type(None))
        if origin in AWAITED:
            return self.build(args[-1])
        if origin in QUALIFIERS:
            return self.build(args[0])
        if origin in UNIONS:
            return self._union(hint, args)
        if origin is Literal:
            return literal(hint, args)
        if origin is not None:
            return self._generic(hint, origin, args)
        return self._class(hint) if isinstance(hint, type) else None

    def _union(self, hint: Any, args: tuple[Any, ...]) -> Check | None:
        checks = [made for arg in args if (made := self.build(arg))]
        if len(checks) < len(args):  # something in it fits anything
            return None

        def check(value: Any) -> Misfit | None:
            misfits = []
            for each in checks:
                misfit = each(value)
                if misfit is None:
                    return None
                misfits.append(misfit)
            # Of `list[int] | None`, a list with a text in it is told by the text.
            inner = [misfit for misfit in misfits if misfit.path]
            return inner[0] if len(inner) == 1 else Misfit("", short(hint), value)

        return check

    def _generic(self, hint: Any, origin: Any, args: tuple[Any, ...]) -> Check | None:
        if not isinstance(origin, type) or origin in NO_CLASS_OF_A_VALUE:
            return None
        if origin is tuple and not (len(args) == 2 and args[1] is ...):
            return self._tuple(hint, [self.build(arg) for arg in args])
        if issubclass(origin, Mapping) and len(args) == 2:
            return self._mapping(hint, origin, self.build(args[0]), self.build(args[1]))
        if issubclass(origin, Sequence | Set) or origin is Collection:
            return self._items(hint, origin, self.build(args[0]))
        return self._class(origin)

    def _items(self, hint: Any, origin: type, item: Check | None) -> Check | None:
        outer = of_class(origin, short(hint))
        if outer is None or item is None:
            return outer
        exact = getattr(item, "exact", None)

        def check(value: Any) -> Misfit | None:
            if (misfit := outer(value)) or isinstance(value, str | bytes):
                return misfit
            if exact and set(map(type, value)) <= {exact}:
                return None  # nearly always, and quicker than to look at each
            is_ordered = isinstance(value, Sequence)
            for number, each in enumerate(value):
                if misfit := item(each):
                    return within(f"[{number}]" if is_ordered else "{…}", misfit)
            return None

        return check

    def _tuple(self, hint: Any, items: list[Check | None]) -> Check:
        def check(value: Any) -> Misfit | None:
            if not isinstance(value, tuple) or len(value) != len(items):
                return Misfit("", short(hint), value)
            for number, (item, each) in enumerate(zip(items, value, strict=True)):
                if item and (misfit := item(each)):
                    return within(f"[{number}]", misfit)
            return None

        return check

    def _mapping(
        self, hint: Any, origin: type, of_key: Check | None, of_value: Check | None
    ) -> Check | None:
        outer = of_class(origin, short(hint))
        if outer is None or not (of_key or of_value):
            return outer

        def check(value: Any) -> Misfit | None:
            if misfit := outer(value):
                return misfit
            for key, each in value.items():
                if of_key and (misfit := of_key(key)):
                    return within(f"[key {key!r:.80}]", misfit)
                if of_value and (misfit := of_value(each)):
                    return within(f"[{key!r:.80}]", misfit)
            return None

        return check

    def _class(self, kind: type) -> Check | None:
        if made := self._made.get(kind):
            return made
        if is_typeddict(kind):
            return self._of_fields(kind, of_class(dict, kind.__name__), "[{!r}]", {})
        if issubclass(kind, msgspec.Struct):
            return self._of_fields(kind, of_class(kind), ".{}", struct_defaults(kind))
        if is_dataclass(kind):
            defaults = {each.name: each.default for each in fields_of(kind)}
            return self._of_fields(kind, of_class(kind), ".{}", defaults)
        # A model of pydantic's has checked its fields itself.
        return of_class(kind)

    def _of_fields(
        self, kind: type, outer: Check | None, place: str, defaults: Mapping[str, Any]
    ) -> Check | None:
        """Return the check of a class whose fields nobody has checked when one was made.

        A field that has its own default is taken as it is: `note: str = None` is widespread.
        """
        if outer is None:
            return None
        items: dict[str, Check] = {}
        required: Collection[str] = getattr(kind, "__required_keys__", ())

        def check(value: Any) -> Misfit | None:
            if misfit := outer(value):
                return misfit
            known = value if isinstance(value, dict) else Attributes(value)
            for name in required:
                if name not in value:
                    return Misfit("", f"{kind.__name__}, which has a {name!r}", value)
            for name, item in items.items():
                each = known.get(name, MISSING)
                if each is MISSING or each is defaults.get(name, MISSING):
                    continue
                if misfit := item(each):
                    return within(place.format(name), misfit)
            return None

        self._made[kind] = check  # before its fields, which may be of the same type
        items.update(
            (name, item) for name, hint in hints_of(kind).items() if (item := self.build(hint))
        )
        return check


class Attributes:
    """The attributes of an object, asked for as the items of a dict are."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def get(self, name: str, default: Any) -> Any:
        return getattr(self._of, name, default)


def of_class(kind: type, declared: str = "") -> Check | None:
    """Return the check that a value is an instance; None for a class that cannot say so."""
    accepted: Any = (int, float) if kind is float else kind  # a whole number is a float, too
    try:
        isinstance(None, accepted)
    except TypeError:  # a protocol, say
        return None

    def check(value: Any) -> Misfit | None:
        return None if isinstance(value, accepted) else Misfit("", declared or kind.__name__, value)

    check.exact = kind  # type: ignore[attr-defined]
    return check


def literal(hint: Any, options: tuple[Any, ...]) -> Check:
    known = {(type(option), option) for option in options}

    def check(value: Any) -> Misfit | None:
        is_known = value.__hash__ is not None and (type(value), value) in known
        return None if is_known else Misfit("", f"one of {short(hint)}", value)

    return check


def struct_defaults(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {each.name: each.default for each in msgspec.structs.fields(kind)}


def hints_of(kind: type) -> dict[str, Any]:
    """Return the annotations of a class's fields; none where one of them cannot be resolved."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:  # noqa: BLE001 - an annotation may be any expression
        return {}
    if is_typeddict(kind):
        return hints
    if issubclass(kind, msgspec.Struct):
        return {name: hints[name] for name in kind.__struct_fields__ if name in hints}
    known = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: hints[name] for name in known if name in hints}


def within(place: str, misfit: Misfit) -> Misfit:
    return misfit._replace(path=place + misfit.path)
