"""Who wants to hear of what was written: of everything, or of one session.

Nothing here is asked for each pair of a listener and a session: with a thousand of each that
would be most of the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

Heard = Callable[[str, bool], None]

EVERYTHING = ""
NOBODY: Mapping[object, Heard] = {}


class Listeners:
    """The listeners of one event loop, by what they listen to."""

    def __init__(self) -> None:
        self._by_session: dict[str, dict[object, Heard]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_session)

    def add(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        """Begin to call a listener; returns what stops it."""
        key = object()
        self._by_session.setdefault(session_id, {})[key] = heard

        def stop() -> None:
            ears = self._by_session.get(session_id, {})
            ears.pop(key, None)
            if not ears:
                self._by_session.pop(session_id, None)

        return stop

    def clear(self) -> None:
        self._by_session.clear()

    def tell(self, session_id: str, arrived: bool) -> None:
        """Call who listens to the session; a hint of nothing in particular is for all.

        One that fails is the event loop's to report: whoever has written hears nothing of it.
        """
        for heard in self._of(session_id):
            try:
                heard(session_id, arrived)
            except Exception as error:  # noqa: BLE001
                told = {"message": "a listener of a store failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    def _of(self, session_id: str) -> list[Heard]:
        if session_id == EVERYTHING:
            return [heard for ears in self._by_session.values() for heard in ears.values()]
        return [
            *self._by_session.get(EVERYTHING, NOBODY).values(),
            *self._by_session.get(session_id, NOBODY).values(),
        ]
