"""A bookmark: all that is needed to go on with a session later, somewhere else."""

from typing import Any, TypedDict, cast

from outlast.core.cursor import cursor_of
from outlast.core.name import MAX_ID
from outlast.errors import InvalidInput


class Bookmark(TypedDict):
    """Plain data, to be kept as JSON. `after` is the cursor of the last event read."""

    session_id: str
    continuation_token: str | None
    after: str


def check_bookmark(given: Any) -> Bookmark:
    """Return a bookmark if it has the shape of one."""
    if not isinstance(given, dict) or set(given) != set(Bookmark.__annotations__):
        raise InvalidInput(
            "a bookmark is a dict with session_id, continuation_token and after: "
            "keep `session.bookmark` as it is"
        )
    session_id, index = given["session_id"], given["after"]
    if not isinstance(session_id, str) or not 0 < len(session_id) <= MAX_ID:
        raise InvalidInput("a bookmark's session_id is the id of a session")
    if not isinstance(given["continuation_token"], str | None):
        raise InvalidInput("a bookmark's continuation_token is a text, or None")
    if not isinstance(index, str):
        raise InvalidInput("a bookmark's after is the text of a cursor")
    try:
        cursor_of(index)
    except InvalidInput as error:
        raise InvalidInput(f"a bookmark's after is none: {error.message}") from None
    return cast(Bookmark, dict(given))
