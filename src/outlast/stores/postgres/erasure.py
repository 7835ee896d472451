"""Taking a session away. What goes, and in which order it is locked, is in functions/erase.sql."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlast.stores.postgres.aside import SideConnection
from outlast.stores.postgres.notify import Notifier
from outlast.stores.postgres.reader import Readers
from outlast.stores.postgres.statement import Query

_decode = msgspec.json.Decoder(list[str]).decode


class Eraser:
    """Erases sessions, each in a transaction of its own: a group could hold what it waits for."""

    def __init__(
        self,
        aside: SideConnection,
        readers: Readers,
        queries: Mapping[str, Query],
        messenger: Notifier,
    ) -> None:
        self._aside = aside
        self._readers = readers
        self._queries = queries
        self._messenger = messenger

    async def erase(self, session_id: str) -> bool:
        """Erase a session; of several who do so at once, one is told that there was one."""
        named = {"session_id": session_id}
        if not await self._readers.ask(self._queries["knows_session"].bind(named)):
            return False
        doubts: list[bool] = []
        [(woken,)] = await self._aside.do(
            self._queries["erase"].bind(named), lambda: doubts.append(True)
        )
        if woken is None and not doubts:
            return False
        # It was there, so where an answer was lost it is gone by our own doing.
        others = _decode(woken) if woken else []
        self._messenger.tell(dict.fromkeys([session_id, *others], True))
        return True
