"""Things that show nothing of themselves, wherever they are printed."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Redacted(Struct, frozen=True, gc=False, omit_defaults=True):
    """Prints its name and no more: in an error, a log line, or a traceback with its locals."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []
