"""Shapes that all requests and responses share: ids, instants, pages, errors."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from outlast.core.instant import rfc3339
from outlast.core.name import MAX_ID

SESSION = "ses_01K5ZJ3M8Q4V6X2T9R7B1C0D5F"
DELIVERY = "dlv_01K5ZJ3M8Q9H2N4P6S8V0X2Z4B"
REQUEST = "req_8c1f0e5b7a9d3e2f4c6a8b0d1e"
TOKEN = "q7Yt2mXw9LkVbN4sRfZc8HdJpA3uGe6T"  # noqa: S105 - an example for the documentation
INSTANT = "2026-01-31T12:00:00.000Z"

Id = Annotated[
    str, Field(min_length=1, max_length=MAX_ID, pattern=r"^[^\x00]+$", examples=["order-17"])
]
"""A name from a caller, limited to what every store can keep."""

Link = Annotated[str, Field(min_length=1, max_length=8192)]
"""An address of something on the net."""

MOST_UNKNOWN = 20
"""Unknown fields that are told one by one; each costs a report a thousand times its size."""

Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=[INSTANT])]


def rfc3339_or_none(at: datetime | None) -> str | None:
    return rfc3339(at) if at else None


class In(BaseModel):
    """Something that is sent to the server: what is not known is refused, not dropped."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def has_few_unknown_fields(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > len(cls.model_fields) + MOST_UNKNOWN:
            raise ValueError(f"it has {len(given):,} fields, and {len(cls.model_fields)} are known")
        return given


class Out(BaseModel):
    """Something that the server sends."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Out):
    """An error: what went wrong and what to do about it."""

    code: str = Field(description="Stable: programs look at this.", examples=["UNKNOWN_SESSION"])
    message: str = Field(examples=["there is no session ses_01K5ZJ3M8Q4V6X2T9R7B1C0D5F"])
    hint: str = Field(examples=["GET /v1/sessions lists those that exist."])
    details: dict[str, Any] = Field(examples=[{"session": SESSION}])


class ErrorBody(Out):
    """The body of every error."""

    error: ErrorDetail


def example(value: dict[str, Any]) -> ConfigDict:
    """Return the configuration of a type that shows itself with an example."""
    return ConfigDict(json_schema_extra={"examples": [value]})


def examples() -> dict[str, list[Any]]:
    """Return the examples of all types by their names, as they were written."""
    found: dict[str, list[Any]] = {}
    left: list[type[BaseModel]] = [In, Out]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        extra = kind.model_config.get("json_schema_extra")
        if isinstance(extra, dict) and isinstance(shown := extra.get("examples"), list):
            found[kind.__name__] = shown
    return found
