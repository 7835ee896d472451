"""A session's state as it is read from outside of its turns: queries, snapshots and its prompt.

Changing it from there is in `mutation.py`, being told of changes in `observation.py`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Generic

from typing_extensions import TypeVar

from outlast.agents.agent import Agent
from outlast.agents.prompt.render import PromptRenderer, RenderedPrompt
from outlast.agents.prompt.template import template_of, with_guidance
from outlast.agents.runtime.context import SessionContext
from outlast.agents.skill.tool import guidance_of
from outlast.agents.state.slice_type import SliceType
from outlast.agents.state.snapshot import Snapshot, own_slices
from outlast.agents.state.stored_value import Slice
from outlast.core.instant import date_of
from outlast.core.lane import Lane
from outlast.core.name import MAIN
from outlast.core.record import ContextChangeRefused, Failure, StateChangeRefused
from outlast.core.slice import EMPTY, STATE_RECORDS, Slices, change_all, values_of
from outlast.errors import InvalidInput
from outlast.log.explain.evidence import read_state as read_lane
from outlast.log.snapshot import load_start
from outlast.store import DeliveryInfo, Loaded, SessionInfo, Store

T = TypeVar("T")

CHILDREN_AT_ONCE = 200
REFUSAL_IS_NEAR = 4
"""A refusal stands right before the record that settles its delivery."""


async def read_slices(store: Store, session_id: str) -> Slices:
    """Return the session's slices as they are in the log now."""
    return (await read_state(store, session_id))[0]


async def read_state(store: Store, session_id: str) -> tuple[Slices, int]:
    """Return the session's slices, and the offset of the last record that they are made of."""

    async def load(after: int | None) -> Loaded:
        return await store.log.load(session_id, MAIN, after)

    found = await load_start(load, session_id, MAIN)
    # The entries begin at the older of two snapshots, and the slices may have the newer one.
    later = [entry for entry in found.loaded.entries if entry.offset > found.slices_offset]
    changed = (entry.offset for entry in later if isinstance(entry.record, STATE_RECORDS))
    return change_all(found.slices, later), max(changed, default=found.slices_offset)


async def take_snapshot(store: Store, info: SessionInfo) -> Snapshot:
    """Return all that a session keeps, and what it is known by."""
    slices, offset = await read_state(store, info.session_id)
    return Snapshot(
        session_id=info.session_id,
        created_at=info.created_at,
        taken_at=date_of(store.clock.date()),
        offset=offset,
        tags=info.tags,
        parent=info.parent or None,
        children=tuple([child async for child in children_of(store, info)]),
        slices=own_slices(slices),
    )


async def take_snapshot_at(store: Store, info: SessionInfo, at: Any) -> Snapshot:
    """Return all that a session kept when its log had come to an offset."""
    if type(at) is not int or not 1 <= at <= info.end:
        raise InvalidInput(
            f"a snapshot is of a place in the session's log, from 1 to {info.end}, not {at!r}"
        )
    slices, offset, taken_at = EMPTY, 0, 0
    while offset < at:
        page = await store.log.read(info.session_id, offset)
        entries = [entry for entry in page.entries if entry.offset <= at]
        slices = change_all(slices, entries)
        offset, taken_at = entries[-1].offset, entries[-1].at
    by_then = date_of(taken_at)
    return Snapshot(
        session_id=info.session_id,
        created_at=info.created_at,
        taken_at=by_then,
        offset=at,
        tags=info.tags,
        parent=info.parent or None,
        children=tuple([child async for child in children_of(store, info, by_then)]),
        slices=own_slices(slices),
    )


async def children_of(
    store: Store, info: SessionInfo, by_then: datetime | None = None
) -> AsyncIterator[str]:
    """Yield the sessions that a session has started, by then or so far, oldest first."""
    found: list[str] = []
    before = None
    while page := await store.listing.sessions(
        tenant=info.tenant, parent=info.session_id, before=before, limit=CHILDREN_AT_ONCE
    ):
        found += [each.session_id for each in page if not by_then or each.created_at <= by_then]
        before = page[-1].session_id
    # They are listed newest first.
    for child in reversed(found):
        yield child


REFUSALS = (StateChangeRefused, ContextChangeRefused)


async def read_refusal(store: Store, change: DeliveryInfo) -> Failure | None:
    """Return why a change of state was refused; None: because the session was over."""
    page = await store.log.read_back(change.session_id, change.settled_offset, REFUSAL_IS_NEAR)
    # From the end: the refusal stands right before the record that settles the delivery.
    for entry in reversed(page.entries):
        record = entry.record
        if isinstance(record, REFUSALS) and record.delivery_id == change.delivery_id:
            return record.error
    return None


async def render_prompt(
    agent: Agent[Any, Any], store: Store, session_id: str | None, lane: str, deps: Any
) -> RenderedPrompt:
    """Return the prompt of a session, or of one that has just begun."""
    template = agent.prompt or with_guidance(
        template_of(agent.instructions), agent.planning, guidance_of(agent.skills)
    )
    renderer = PromptRenderer(template, deps)
    if session_id is None:
        return await renderer.render(SessionContext(Lane("", lane, agent.name), EMPTY))
    state = await read_lane(store, session_id, lane)
    if state.agent != agent.name:
        raise InvalidInput(f"{session_id} is a session of {state.agent}, not of {agent.name}")
    return await renderer.render(SessionContext(state, await read_slices(store, session_id)))


class SliceQuery(Generic[T]):
    """A session's values of one type, read again at each call."""

    def __init__(self, kept_as: SliceType[T], read: Callable[[], Awaitable[Slices]]) -> None:
        self._type = kept_as
        self._slices = read

    async def _read(self) -> Slice[T]:
        return Slice(values_of(await self._slices(), self._type.name), self._type)

    async def all(self) -> list[T]:
        """Return all values, oldest first."""
        return (await self._read()).all()

    async def latest(self) -> T | None:
        """Return the newest value, or None."""
        return (await self._read()).latest()

    async def where(self, predicate: Callable[[T], bool]) -> list[T]:
        """Return the values for which the predicate is true."""
        return (await self._read()).where(predicate)
