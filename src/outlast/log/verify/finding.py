"""One thing that verification found wrong, and where."""

from msgspec import Struct


class Finding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong with a session. `offset` is 0 where an index is wrong by itself."""

    session_id: str
    code: str
    message: str
    offset: int = 0
    lane: str = ""


Wrong = tuple[str, str]
"""A code and a sentence, before it is known where."""
