"""The transaction that a transactional tool or step shares with the record of what it came to.

Owns when it begins, and what of it users may call. What is committed with it is its owner's affair
(`tool_call.py`, `step.py`); how it is done is the store's.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from outlast.engine.executor import CallJournal
from outlast.errors import InvalidInput, NotInTransaction
from outlast.store import Commit, Committed, Refused, Transaction


class LazyTransaction:
    """The transaction of a tool or a step; it begins with the first statement."""

    def __init__(self, journal: CallJournal, stack: AsyncExitStack) -> None:
        self.opened: Transaction | None = None
        self._journal = journal
        self._stack = stack

    async def _open(self) -> Transaction:
        if self.opened is None:
            self.opened = await self._stack.enter_async_context(self._journal.transaction())
        return self.opened

    async def execute(self, sql: str, params: Sequence[Any] = ()) -> int:
        checked = in_order(params)
        return await (await self._open()).execute(sql, checked)

    async def fetch(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        checked = in_order(params)
        return await (await self._open()).fetch(sql, checked)

    async def fetch_one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        checked = in_order(params)
        return await (await self._open()).fetch_one(sql, checked)

    @property
    def raw(self) -> Any:
        if self.opened is None:
            raise NotInTransaction("nothing was executed yet: the transaction is not open")
        return self.opened.raw

    async def commit(self, commit: Commit) -> Committed | Refused:
        raise NotInTransaction("Outlast commits this transaction when the tool or step returns")


def in_order(params: Any) -> Sequence[Any]:
    """Return a statement's parameters; a mapping's names, or a text's characters, are none."""
    if not isinstance(params, Sequence) or isinstance(params, str | bytes | bytearray):
        raise InvalidInput(
            f"parameters of a statement are given in their order, in a list, not {params!r:.80}"
        )
    return params
