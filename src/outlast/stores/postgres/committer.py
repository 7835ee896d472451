"""Commits from the caller's side: sent with a group, their arrivals read, their fate found out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from outlast.core.codec import Packer
from outlast.store import Commit, Committed, Refused
from outlast.stores.postgres.commit import LEASE_LOST, CommitItem, PackedAnswer
from outlast.stores.postgres.notify import Notifier
from outlast.stores.postgres.row import BlobMissing, Unpacker
from outlast.stores.postgres.statement import Query
from outlast.stores.postgres.writer import Hints, Writer

ABSENT = Refused("absent")
UNDONE = Refused("undone")


class Committer:
    """Turns commits into what goes out, and answers into results."""

    def __init__(
        self,
        packer: Packer,
        unpacker: Unpacker,
        writer: Writer,
        messenger: Notifier,
        query: Query,
    ) -> None:
        self._packer = packer
        self._query = query
        self._unpacker = unpacker
        self._writer = writer
        self._messenger = messenger

    def entry(self, commit: Commit) -> CommitItem:
        return CommitItem(commit, self._packer, self._query)

    async def commit(self, commits: Sequence[Commit]) -> list[Committed | Refused]:
        if len(commits) == 1:
            return [await self._read(commits[0], await self._writer.write(self.entry(commits[0])))]
        found = await asyncio.gather(*(self._writer.submit(self.entry(c)) for c in commits))
        return [await self._read(*each) for each in zip(commits, found, strict=True)]

    async def finish(
        self, commit: Commit, found: Committed | Refused | PackedAnswer, hints: Hints
    ) -> Committed | Refused:
        """Do for a commit outside the writer's groups what the writer does for its own."""
        if hints:
            self._messenger.tell(hints)
        return await self._read(commit, found)

    async def find_out(self, commit: Commit) -> Committed | Refused:
        """Return what became of a commit whose acknowledgement was lost.

        A transaction that may still commit holds the session, so the answer comes after its end.
        """
        found = await self._ask(commit)
        return UNDONE if found == ABSENT else await self.finish(commit, found, {})

    async def _ask(self, commit: Commit) -> Committed | Refused | PackedAnswer:
        """Ask whether a commit has landed."""
        found: Committed | Refused | PackedAnswer
        entry = CommitItem(commit, self._packer, self._query, asks=True)
        found = await self._writer.submit(entry)
        return found

    async def _read(
        self, commit: Commit, found: Committed | Refused | PackedAnswer
    ) -> Committed | Refused:
        if not isinstance(found, PackedAnswer):
            return found
        try:
            entries = await self._unpacker.entries(found.tenant, found.arrivals, found.seen)
        except BlobMissing:
            if await self._ask(commit) == LEASE_LOST:  # the session was erased meanwhile
                return LEASE_LOST
            raise
        return replace(found.result, arrivals=tuple(entries))
