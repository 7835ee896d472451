"""Python values to JSON text and back, for results, slices and steps. Never pickle."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from holdfast.errors import InvalidInput, NotEncodable, StoreCorrupt

T = TypeVar("T")


def to_json(value: Any) -> str:
    """Return a value as JSON text, or say why that cannot be."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
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


def from_json(text: str, kind: type[T] | Any = Any) -> Any:
    """Return JSON text as a value of a type; as plain data where no type is known."""
    if kind is Any:
        return msgspec.json.decode(text)
    try:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return msgspec.json.decode(text, type=kind)
        return TypeAdapter(kind).validate_json(text)
    except (ValidationError, msgspec.MsgspecError, PydanticSchemaGenerationError) as error:
        raise StoreCorrupt(
            f"a stored value does not fit {getattr(kind, '__name__', kind)}: {error}; "
            "did the type change? give its new fields defaults"
        ) from error


def slice_name(kind: type) -> str:
    """Return the name under which values of a type are kept: its own, or `__slice__`."""
    name = getattr(kind, "__slice__", None) or getattr(kind, "__name__", None)
    if name is None:
        raise InvalidInput(f"what is kept is asked for by its type, not by {kind!r}")
    return str(name)
