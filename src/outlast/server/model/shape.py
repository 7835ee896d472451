"""Shapes that all requests and responses share: ids, instants, pages, errors."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outlast.core.instant import date_of, milliseconds_at
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

Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=[INSTANT])]


def instant(milliseconds: int) -> str:
    """Return an instant as RFC 3339 has it, in UTC and to the millisecond."""
    moment = date_of(milliseconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{milliseconds % 1000:03d}Z"


def rfc3339(at: datetime | None) -> str | None:
    """Return a public instant as RFC 3339 has it, if there is one."""
    return instant(milliseconds_at(at)) if at else None


def instant_or_none(milliseconds: int | None) -> str | None:
    return instant(milliseconds) if milliseconds else None


class In(BaseModel):
    """Something that is sent to the server: what is not known is refused, not dropped."""

    model_config = ConfigDict(extra="forbid", strict=True)


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
