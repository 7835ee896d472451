"""Outbox cursors: durable cursors over sessions' logs, given out to one teller at a time."""

from typing import Any

from msgspec.structs import replace

from outlast.clock import Clock
from outlast.core.record import NewOutboxCursor, SessionRekeyed
from outlast.store import Claim, DeadLetter, OutboxCursor, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    commit,
    delta,
    park,
    start_and_claim,
    write,
    write_in_vain,
)
from outlast.testing.contract.store_under_test import StoreUnderTest

HOLD = 60_000
HOOK = NewOutboxCursor("webhook", ("turn.completed", "turn.failed"), "https://shop.example/hook")


async def start_with_cursor(store: Store, clock: Clock, **changes: Any) -> Claim:
    return await start_and_claim(
        store, clock, **{"outbox": (HOOK,), "tags": {"on": "paper"}, **changes}
    )


async def tell(store: Store, claim: Claim) -> Claim:
    """Commit something that the session's outbox cursors have to tell."""
    await write(store, commit(claim, delta(), tells=True))
    return replace(claim, number=claim.number + 1)


async def take_one(store: Store) -> OutboxCursor:
    (cursor,) = await store.outbox.take(10, HOLD)
    return cursor


def letter(cursor: OutboxCursor, offset: int = 3) -> DeadLetter:
    return DeadLetter(
        session_id=cursor.session_id,
        tenant=cursor.tenant,
        cursor_name=cursor.name,
        offset=offset,
        type="turn.completed",
        error="503",
        at=9,
    )


class OutboxContract(StoreUnderTest):
    async def test_a_new_outbox_cursor_has_nothing_to_tell(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_with_cursor(store, clock)
        await write(store, commit(claim, delta()))

        (listed,) = await store.outbox.cursors(claim.session_id)

        assert (listed.name, listed.url, listed.events) == (HOOK.name, HOOK.url, HOOK.events)
        assert (listed.position, listed.due_at, listed.agent) == (0, None, "support")
        assert await store.outbox.take(10, HOLD) == []
        assert await store.outbox.next_due_at() is None

    async def test_what_is_told_is_due_now_though_the_log_is_dated_later(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_with_cursor(store, clock)
        await write(store, commit(claim, delta(), at=clock.now() + 3_600_000, tells=True))
        assert await store.outbox.next_due_at() == clock.now()
        assert (await take_one(store)).session_id == claim.session_id

    async def test_a_session_that_is_anchored_elsewhere_has_one_more_outbox_cursor(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_with_cursor(store, clock)
        board = NewOutboxCursor("channel:board", ("turn.completed",))
        anchored = SessionRekeyed(token=clock.token(), outbox=(board,))
        written = await write(store, commit(claim, delta(), anchored, tells=True))
        both = {each.name: each for each in await store.outbox.cursors(claim.session_id)}
        assert both.keys() == {"webhook", "channel:board"}
        assert both["channel:board"].events == board.events
        assert both["channel:board"].position == written.first_offset - 1
        taken = {cursor.name for cursor in await store.outbox.take(10, HOLD)}
        assert taken >= {"webhook"}

        claim = replace(claim, number=claim.number + 1)
        again = SessionRekeyed(token=clock.token(), outbox=(board,))
        await write(store, commit(claim, again, tells=True))
        kept = {each.name: each.position for each in await store.outbox.cursors(claim.session_id)}
        assert kept == {name: each.position for name, each in both.items()}

    async def test_a_commit_that_tells_makes_the_sessions_outbox_cursors_due(
        self, store: Store, clock: ManualClock
    ) -> None:
        other = NewOutboxCursor("agent:audit", ("session.ended",))
        claim = await start_with_cursor(store, clock, outbox=(HOOK, other))
        await start_with_cursor(store, clock, held=[claim])
        await tell(store, claim)

        assert await store.outbox.next_due_at() is not None
        taken = await store.outbox.take(10, HOLD)

        assert {each.name for each in taken} == {"webhook", "agent:audit"}
        assert {each.session_id for each in taken} == {claim.session_id}

    async def test_a_commit_that_is_refused_tells_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_with_cursor(store, clock)

        await write_in_vain(store, commit(claim, delta(), tells=True, fence=claim.fence - 1))

        assert await store.outbox.take(10, HOLD) == []

    async def test_many_commits_at_once_tell_each_for_its_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        claims: list[Claim] = []
        for _ in range(6):
            claims.append(await start_with_cursor(store, clock, held=claims))
        telling = claims[::2]

        await store.log.commit([commit(c, delta(), tells=c in telling) for c in claims])

        taken = await store.outbox.take(10, HOLD)
        assert {each.session_id for each in taken} == {c.session_id for c in telling}

    async def test_a_commit_that_parks_tells_too(self, store: Store, clock: ManualClock) -> None:
        claim = await start_with_cursor(store, clock)

        await write(store, park(claim, delta(), tells=True))

        assert (await take_one(store)).session_id == claim.session_id

    async def test_an_outbox_cursor_is_given_to_one_until_its_hold_is_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        await tell(store, await start_with_cursor(store, clock))
        await take_one(store)
        assert await store.outbox.take(10, HOLD) == []

        clock.advance(HOLD)

        assert (await take_one(store)).name == "webhook"

    async def test_no_more_outbox_cursors_are_given_than_asked_for_and_the_longest_due_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = await start_with_cursor(store, clock)
        second = await start_with_cursor(store, clock, held=[first])
        for claim in (second, first):
            clock.advance(1000)
            await write(store, commit(claim, delta(), tells=True, at=clock.now()))

        (taken,) = await store.outbox.take(1, HOLD)

        assert taken.session_id == second.session_id

    async def test_a_settled_outbox_cursor_rests_at_its_position(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await tell(store, await start_with_cursor(store, clock))
        taken = await take_one(store)

        assert await store.outbox.settle(taken, position=3, again_at=None)

        assert await store.outbox.take(10, HOLD) == []
        assert await store.outbox.next_due_at() is None
        await tell(store, claim)
        assert (await take_one(store)).position == 3

    async def test_what_is_told_while_an_outbox_cursor_is_held_is_not_lost(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await tell(store, await start_with_cursor(store, clock))
        taken = await take_one(store)
        await tell(store, claim)

        await store.outbox.settle(taken, position=3, again_at=None)

        assert (await take_one(store)).position == 3

    async def test_a_failing_outbox_cursor_is_due_again_when_it_was_said(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await tell(store, await start_with_cursor(store, clock))
        taken = await take_one(store)
        later = clock.now() + 5000

        await store.outbox.settle(taken, position=0, again_at=later, tries=1, error="503")
        await tell(store, claim)

        assert await store.outbox.take(10, HOLD) == []
        assert await store.outbox.next_due_at() == later
        (failing,) = await store.outbox.cursors(failing_only=True)
        assert (failing.tries, failing.error, failing.due_at) == (1, "503", later)
        clock.advance(5000)
        assert (await take_one(store)).tries == 1

    async def test_who_lost_the_hold_settles_nothing(
        self, store: Store, clock: ManualClock
    ) -> None:
        await tell(store, await start_with_cursor(store, clock))
        late = await take_one(store)
        clock.advance(HOLD)
        await take_one(store)

        assert not await store.outbox.settle(late, position=9, again_at=None, dead=[letter(late)])

        (listed,) = await store.outbox.cursors()
        assert listed.position == 0
        assert await store.outbox.dead_letters() == []

    async def test_what_could_not_be_told_is_listed_newest_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        await tell(store, await start_with_cursor(store, clock))
        taken = await take_one(store)

        dead = [letter(taken, 3), letter(taken, 4)]
        await store.outbox.settle(taken, position=4, again_at=None, dead=dead)

        assert await store.outbox.dead_letters() == dead[::-1]
        assert await store.outbox.dead_letters(tenant="other") == []
        assert await store.outbox.dead_letters(session_id=taken.session_id, limit=1) == dead[1:]

    async def test_outbox_cursors_are_listed_by_tenant(
        self, store: Store, clock: ManualClock
    ) -> None:
        await start_with_cursor(store, clock)

        assert len(await store.outbox.cursors(tenant="default")) == 1
        assert await store.outbox.cursors(tenant="other") == []
        assert await store.outbox.cursors(failing_only=True) == []
