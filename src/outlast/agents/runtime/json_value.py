"""Python values to JSON text and back, for results, slices and steps. Never pickle."""

from math import isfinite
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from outlast.core.json_text import MAX_DEPTH, JsonRefused, is_deep, parse_json
from outlast.errors import InvalidInput, NotEncodable, StoreCorrupt

T = TypeVar("T")


class TypeMismatch(Exception):
    """A JSON text is no value of a type, for what is said."""


def to_json(value: Any) -> str:
    """Return a value as JSON text, or say why that cannot be."""
    try:
        text = msgspec.json.encode(value, enc_hook=_plain).decode()
        if is_deep(text):
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
        if "null" in text:  # which is what a number becomes that JSON has no word for
            check_finite(msgspec.to_builtins(value, enc_hook=_plain))
        return text
    except (TypeError, ValueError, PydanticSerializationError, RecursionError) as error:
        raise NotEncodable(
            f"a {type(value).__name__} cannot be stored: {error}; return plain data, a dataclass,"
            " a pydantic model or a msgspec Struct"
        ) from error


def _plain(value: Any) -> Any:
    """Return a value as plain data. What is plain already is asked about only as a dict's key."""
    if value is None or isinstance(value, bool | list | tuple | dict | set | frozenset):
        raise TypeError(f"{value!r} is a key of a dict, and JSON has texts and numbers for that")
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return to_jsonable_python(value)


def check_finite(value: Any) -> None:
    """Raise ValueError if plain data holds a number that is none, or no end."""
    match value:
        case float() if not isfinite(value):
            raise ValueError(f"JSON has no word for {value}")
        case dict():
            check_finite([*value.values()])
        case list() | tuple():
            for each in value:
                check_finite(each)


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


def fitted(text: str, kind: Any) -> Any:
    """Return JSON text as a value of a type. Raises TypeMismatch if it is none."""
    try:
        parse_json(text)
    except JsonRefused as error:
        raise TypeMismatch(str(error)) from error
    try:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return msgspec.json.decode(text, type=kind)
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise TypeMismatch(findings(error)) from error
    except (msgspec.MsgspecError, PydanticSchemaGenerationError) as error:
        raise TypeMismatch(str(error)) from error


def findings(error: ValidationError) -> str:
    """Say in one line what does not fit, finding by finding."""
    told = (
        f"{'.'.join(str(part) for part in each['loc']) or 'value'}: {each['msg']}"
        for each in error.errors(include_url=False, include_input=False)
    )
    return "; ".join(told)


def slice_name(kind: type) -> str:
    """Return the name under which values of a type are kept: its own, or `__slice__`."""
    name = getattr(kind, "__slice__", None) or getattr(kind, "__name__", None)
    if name is None:
        raise InvalidInput(f"what is kept is asked for by its type, not by {kind!r}")
    return str(name)
