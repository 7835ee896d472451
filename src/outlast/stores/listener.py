"""The listeners of one event loop: to every session, or to one.

They are found by session, never by asking each listener: with a thousand listeners and a thousand
sessions that would be most of the work.
"""

import asyncio
from collections.abc import Callable, Mapping

Heard = Callable[[str, bool], None]

EVERYTHING = ""
NONE: Mapping[object, Heard] = {}


class Listeners:
    """The listeners of one event loop, by what they listen to."""

    def __init__(self) -> None:
        self._by_session: dict[str, dict[object, Heard]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_session)

    def add(self, heard: Heard, session_id: str = EVERYTHING) -> Callable[[], None]:
        """Call a listener from now on; return a function that stops it."""
        key = object()
        self._by_session.setdefault(session_id, {})[key] = heard

        def stop() -> None:
            listeners = self._by_session.get(session_id, {})
            listeners.pop(key, None)
            if not listeners:
                self._by_session.pop(session_id, None)

        return stop

    def clear(self) -> None:
        self._by_session.clear()

    def tell(self, session_id: str, arrived: bool) -> None:
        """Call the listeners to a session; a hint without a session is for all of them.

        The event loop reports one that fails: the writer must not fail for it.
        """
        # A list of its own: a listener may stop itself, or another, while it is called.
        for heard in self._of(session_id):
            try:
                heard(session_id, arrived)
            except Exception as error:  # noqa: BLE001
                told = {"message": "a listener of a store failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)

    def _of(self, session_id: str) -> list[Heard]:
        if session_id == EVERYTHING:
            return [
                heard for listeners in self._by_session.values() for heard in listeners.values()
            ]
        return [
            *self._by_session.get(EVERYTHING, NONE).values(),
            *self._by_session.get(session_id, NONE).values(),
        ]
