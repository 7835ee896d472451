"""Starts and ends a schedule's sessions and runs.

Owns the identity of a start: one session for each instant. When one is due is decided by
`integration/schedule/decide.py`.
"""

from msgspec.structs import replace

from outlast.core.name import MAIN
from outlast.core.record import CancelRequested
from outlast.errors import SessionOver, UnknownSession
from outlast.integration.schedule.schedule import Schedule
from outlast.session.inbox import ANYBODY, Inbox, fingerprint_of
from outlast.session.start import NewSession, SessionStarter
from outlast.store import AdmissionReceipt
from outlast.workflows.registry import Workflows


class ScheduleLauncher:
    """Starts tasks that have no human to ask, and runs of workflows."""

    def __init__(
        self, inbox: Inbox, starter: SessionStarter, workflows: Workflows | None = None
    ) -> None:
        self._inbox = inbox
        self._starter = starter
        self._workflows = workflows or {}

    async def fire(self, schedule: Schedule, at: int) -> AdmissionReceipt:
        """Start the session of an instant, or return that which was started for it before.

        Whatever an older or newer version of the code would have said, it is the same start.
        """
        return await self._start(schedule, at, f"instant:{at}", scope=scope_of(schedule))

    async def trigger(self, schedule: Schedule, dispatch_id: str | None) -> AdmissionReceipt:
        """Start a session now, besides those of the instants; with the same id, once."""
        return await self._start(
            schedule, self._inbox.store_clock.date(), dispatch_id, scope=ANYBODY
        )

    async def _start(
        self, schedule: Schedule, at: int, dispatch_id: str | None, *, scope: str
    ) -> AdmissionReceipt:
        new = NewSession(
            agent=schedule.agent,
            message="",
            mode="task",
            dispatch_id=dispatch_id,
            tenant=schedule.tenant,
            principal=schedule.principal,
            sender=scope_of(schedule),
            capabilities={"request_input": False},
            tags=schedule.tags,
            scope=scope,
            # The message and the input may change.
            fingerprint=fingerprint_of(scope_of(schedule), dispatch_id),
        )
        if schedule.workflow:
            text = self._workflows[schedule.workflow].input_text(schedule.input_at(at))
            new = replace(new, agent=schedule.workflow, mode="run", input=text, capabilities=None)
        else:
            new = replace(new, message=schedule.message_at(at))
        return await self._starter.start(new)

    async def end(self, schedule: Schedule, session_id: str) -> None:
        """End a session of the schedule, unless it is over."""
        reason = "the next session of its schedule takes its place"
        cancel = CancelRequested(
            delivery_id="", reason=reason, ends=True, principal=scope_of(schedule)
        )
        try:
            await self._inbox.add(
                session_id,
                schedule.tenant,
                MAIN,
                cancel,
                scope=scope_of(schedule),
                dispatch_id=f"end:{session_id}",
            )
        except (SessionOver, UnknownSession):
            return


def scope_of(schedule: Schedule) -> str:
    """Return the scope of a schedule's dispatch ids: no other caller can use them up."""
    return f"schedule:{schedule.name}"
