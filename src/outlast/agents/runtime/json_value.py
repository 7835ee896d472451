"""Python values to JSON text and back, for results, slices and steps. Never pickle.

Owns what is said of a value that has no JSON: whose it is, and which part of it is at fault.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from math import isfinite
from typing import Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from outlast.core.json_text import (
    MAX_DEPTH,
    JsonRefused,
    check_integers,
    is_deep,
    parse_json,
)
from outlast.errors import NotEncodable, StoreCorrupt

T = TypeVar("T")


class TypeMismatch(Exception):
    """A JSON text is no value of a type, for what is said."""


UNENCODABLE = (TypeError, ValueError, OverflowError, PydanticSerializationError, RecursionError)
LONGEST_PATH = 200


def to_json(value: Any, whose: str = "this is", *, stable: bool = False) -> str:
    """Return a value as JSON text, or say why that cannot be.

    `whose` begins the sentence that says so: "refund returned", for example. A `stable` text is the
    same in every process: a set has another order in each.
    """
    try:
        return encoded_in_order(value) if stable else encoded(value)
    except UNENCODABLE as error:
        raise NotEncodable(
            f"{whose} {described(value)}, which cannot be stored: {error}; use plain data, a"
            " dataclass, a pydantic model or a msgspec Struct"
        ) from error


def encoded(
    value: Any, *, in_order: bool = False, order: Literal["deterministic"] | None = None
) -> str:
    hook = _in_order if in_order else _plain
    text = msgspec.json.encode(value, enc_hook=hook, order=order).decode()
    if is_deep(text):
        raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    # A second look only at texts that may hold one: nearly all hold none.
    if "null" in text:  # which is what a number becomes that JSON has no word for
        check_finite(msgspec.to_builtins(value, enc_hook=_plain))
    return text


def encoded_in_order(value: Any) -> str:
    try:
        return encoded(value, in_order=True, order="deterministic")
    except TypeError:  # also of what cannot be sorted that way: numbers as keys, None in a set
        return encoded(sets_in_order(value, value), in_order=True)


def described(value: Any) -> str:
    """Name the type of a value that has no JSON, and the part of it that is at fault."""
    try:
        # Only now that it has failed: values that have JSON do not pay for this.
        found = find_fault(value)
    except Exception:  # noqa: BLE001 - of the value's own `__repr__`, say
        found = None
    if found is None:
        return a_type(type(value), full=True)
    path, part = found
    if len(path) > LONGEST_PATH:
        path = path[:LONGEST_PATH] + "…"
    return f"{a_type(type(value))} whose {path} is {a_type(type(part), full=True)}"


def find_fault(value: Any) -> tuple[str, Any] | None:
    """Return the innermost part that has no JSON of itself, and its path; None: it is the whole.

    Only called for a value that has failed, so that it may encode each part once per level.
    """
    path, seen, found = "", {id(value)}, None
    while step := next(((name, part) for name, part in parts_of(value) if fails(part)), None):
        name, value = step
        if id(value) in seen:  # it holds itself
            break
        seen.add(id(value))
        path += name
        found = path, value
    return found


def fails(part: Any) -> bool:
    try:
        encoded(part)
    except UNENCODABLE:
        return True
    return False


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value is made of, each part with how it is reached from the value."""
    match value:
        case dict():
            yield from ((f"[{key!r:.80}]", part) for key, part in value.items())
        case list() | tuple():
            yield from ((f"[{number}]", part) for number, part in enumerate(value))
        case set() | frozenset():
            yield from (("{…}", part) for part in value)
        case BaseModel():
            yield from ((f".{name}", part) for name, part in value)
        case msgspec.Struct():
            yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
        case _ if is_dataclass(value) and not isinstance(value, type):
            there = (each.name for each in fields(value) if hasattr(value, each.name))
            yield from ((f".{name}", getattr(value, name)) for name in there)


def a_type(kind: type, *, full: bool = False) -> str:
    """Return a type's name with its article; in `full`, with the module that it is from."""
    if kind is type(None):
        return "None"
    name = kind.__qualname__.rpartition("<locals>.")[2]
    if full and kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _plain(value: Any) -> Any:
    """Return a value as plain data. What is plain already is asked about only as a dict's key."""
    if value is None or isinstance(value, bool | list | tuple | dict | set | frozenset):
        raise TypeError(f"{value!r} is a key of a dict, and JSON has texts and numbers for that")
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return to_jsonable_python(value)


def _in_order(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(value, BaseModel):
        return sets_in_order(plain, value.model_dump())
    return plain


def sets_in_order(plain: Any, value: Any) -> Any:
    """Return plain data with a sorted list for each set of the value that it was made of."""
    match value, plain:
        case dict(), dict() if len(plain) == len(value):
            pairs = zip(plain.items(), value.values(), strict=True)
            return {name: sets_in_order(each, part) for (name, each), part in pairs}
        case ((list() | tuple()), (list() | tuple())) if len(plain) == len(value):
            return [sets_in_order(each, part) for each, part in zip(plain, value, strict=True)]
        case ((set() | frozenset()), _):
            return sorted(plain, key=encoded)
    return plain


def check_finite(value: Any) -> None:
    """Raise ValueError if a value holds a number that is none, or has no end."""
    if type(value) in NO_FLOATS:  # as most are: 0.1 µs, and 2 µs to find that out below
        return
    match value:
        case float() if not isfinite(value):
            raise ValueError(f"JSON has no word for {value}: it is no finite number")
        case Mapping():
            check_finite([*value.values()])
        case list() | tuple() | set() | frozenset():
            for each in value:
                check_finite(each)
        case BaseModel():
            check_finite(dict(value))
        case msgspec.Struct():
            check_finite(msgspec.structs.asdict(value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            check_finite([getattr(value, each.name) for each in fields(value)])


def from_json(text: str, kind: type[T] | Any = Any) -> Any:
    """Return JSON text as a value of a type; as plain data where no type is known."""
    try:
        return parse_json(text) if kind is Any else fitted(text, kind)
    except JsonRefused as why:
        raise StoreCorrupt(f"a stored value cannot be read: {why}") from why
    except TypeMismatch as why:
        raise StoreCorrupt(
            f"a stored value does not fit {getattr(kind, '__name__', kind)}: {why}; "
            "did the type change? give its new fields defaults"
        ) from why


PLAIN = (str, int, bool, float)
NO_FLOATS = frozenset({str, int, bool, type(None)})


@lru_cache(maxsize=1024)
def cached_adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return what reads a type; to make it takes longer than a commit."""
    try:
        return cached_adapter(kind)
    except TypeError:  # it is not hashable
        return TypeAdapter(kind)


def fitted(text: str, kind: Any) -> Any:
    """Return JSON text as a value of a type. Raises TypeMismatch if it is none."""
    try:
        # First by our own rules: pydantic takes what other readers of JSON do not, NaN for one.
        plain = parse_json(text)
    except JsonRefused as error:
        raise TypeMismatch(str(error)) from error
    if kind in PLAIN and type(plain) is kind:
        return plain
    try:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return msgspec.json.decode(text, type=kind)
        return adapter_of(kind).validate_json(text)
    except ValidationError as error:
        raise TypeMismatch(findings(error)) from error
    except (msgspec.MsgspecError, PydanticSchemaGenerationError) as error:
        raise TypeMismatch(str(error)) from error


def answered(text: str, kind: Any) -> Any:
    """Return what a model said as a value of a type, all of whose numbers everybody can read.

    Pydantic makes an endless number of a text such as "NaN" or of an integer with 400 digits; a
    result with one could not be told to anybody.
    """
    value = fitted(text, kind)
    try:
        check_integers(parse_json(text))
        check_finite(value)
    except ValueError as error:
        raise TypeMismatch(str(error)) from None
    return value


def findings(error: ValidationError) -> str:
    """Say in one line what does not fit, finding by finding."""
    told = (
        f"{'.'.join(str(part) for part in each['loc']) or 'value'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False)
    )
    return "; ".join(told)
