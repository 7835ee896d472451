"""Who wants to hear of what was written: of everything, or of one session.

Nothing here is asked for each pair of a listener and a session: with a thousand of each that
would be most of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

Heard = Callable[[str, bool], None]

EVERYTHING = ""


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
        """Call who listens to the session; a hint of nothing in particular is for all."""
        for heard in list(self._of(session_id)):
            heard(session_id, arrived)

    def _of(self, session_id: str) -> Iterator[Heard]:
        if session_id == EVERYTHING:
            for ears in self._by_session.values():
                yield from ears.values()
            return
        yield from self._by_session.get(EVERYTHING, {}).values()
        yield from self._by_session.get(session_id, {}).values()
