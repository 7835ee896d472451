"""Writes to the directory, while an attempt is under way, what would be missed after a crash.

The usage of each model call, and the session's state at each milestone. What cannot be written is
told in the log, and the work goes on: the next checkpoint may succeed.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from msgspec import Raw
from msgspec.structs import replace

from outlast.agents.state.snapshot import Snapshot
from outlast.clock import Clock
from outlast.core.instant import date_of
from outlast.core.record import MilestoneReached, UsageRecorded
from outlast.core.usage import used_by
from outlast.errors import StoreError
from outlast.log_context import get_logger
from outlast.milestones.directory import ExecutionDirectory
from outlast.milestones.execution import ExecutionProgress, SavedCheckpoint
from outlast.session.state import take_snapshot
from outlast.store import Commit, Store

log = get_logger("outlast.milestones")

T = TypeVar("T")


class ExecutionRecorder:
    """Records one attempt, whose session is in `store`. `number` is that of the last checkpoint.

    `before` is the snapshot that an earlier attempt left, if one did: each checkpoint of this
    one also names the sessions that it had started.
    """

    def __init__(
        self,
        directory: ExecutionDirectory,
        store: Store,
        clock: Clock,
        progress: ExecutionProgress,
        before: Snapshot | None,
        number: int,
    ) -> None:
        self.progress = progress
        self._directory = directory
        self._store = store
        self._clock = clock
        self._before = before
        self._number = number
        # A disk that is slow holds up this loop's session, not the event loop.
        self._thread = ThreadPoolExecutor(1, "outlast-checkpoint")

    def close(self) -> None:
        """Wait for what is being written: the directory is another's after this."""
        self._thread.shutdown()

    async def note(self, commit: Commit) -> None:
        """Write down what is worth it of a commit, before its author goes on."""
        used = [record for record in commit.records if isinstance(record, UsageRecorded)]
        for each in used:
            usage = self.progress.usage + used_by(each)
            self.progress = replace(self.progress, usage=usage)
        if used:
            await self.keep_progress()
        is_own = commit.session_id == self.progress.execution.session_id
        if is_own and any(isinstance(record, MilestoneReached) for record in commit.records):
            await self._keep_checkpoint()

    async def keep_progress(self) -> bool:
        """Write down the attempts and the usage."""
        return await self.write("progress", self._directory.keep_progress, self.progress)

    async def _keep_checkpoint(self) -> None:
        self._number += 1
        checkpoint = SavedCheckpoint(
            execution=self.progress.execution,
            number=self._number,
            attempts=self.progress.attempts,
            usage=self.progress.usage,
            written_at=self._clock.now(),
            snapshot=Raw((await self._snapshot()).to_json().encode()),
        )
        await self.write("checkpoint", self._directory.keep_checkpoint, checkpoint)

    async def _snapshot(self) -> Snapshot:
        """Return the session's state, with what was known of it before this attempt."""
        execution, before = self.progress.execution, self._before
        info = await self._store.listing.session(execution.session_id)
        assert info is not None
        found = await take_snapshot(self._store, info)
        return replace(
            found,
            created_at=date_of(execution.started_at),
            children=(*(before.children if before else ()), *found.children),
        )

    async def write(self, what: str, do: Callable[[T], None], body: T) -> bool:
        """Write something, and say whether that was possible."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, do, body)
        except StoreError as error:
            reason = {"path": str(self._directory.path), "reason": error.message, "what": what}
            log.warning("an execution cannot be written down; the work goes on", extra=reason)
            return False
        return True
