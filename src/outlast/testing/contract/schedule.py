"""Schedules: armed once, moved on by one, paused by anybody."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.store import ScheduleInfo, Store
from outlast.testing.contract.subject import Subject

DIGEST = ScheduleInfo(name="digest", fingerprint="f1", next_at=1000)


async def the(store: Store, name: str = "digest") -> ScheduleInfo:
    [found] = [info for info in await store.document.schedules() if info.name == name]
    return found


class ScheduleContract(Subject):
    async def test_an_armed_schedule_is_listed(self, store: Store) -> None:
        await store.document.arm_schedule(replace(DIGEST, name="b"))
        await store.document.arm_schedule(replace(DIGEST, name="a"))

        assert [info.name for info in await store.document.schedules()] == ["a", "b"]

    async def test_arming_again_changes_nothing(self, store: Store) -> None:
        await store.document.arm_schedule(DIGEST)
        await store.document.advance_schedule(
            "digest", 1000, next_at=2000, fired_at=1000, session_id="ses_1"
        )

        await store.document.arm_schedule(replace(DIGEST, next_at=1500))

        moved = await the(store)
        assert (moved.next_at, moved.fired_at, moved.session_id) == (2000, 1000, "ses_1")

    async def test_a_schedule_with_another_meaning_is_armed_anew_and_stays_paused(
        self, store: Store
    ) -> None:
        await store.document.arm_schedule(DIGEST)
        await store.document.pause_schedule("digest", True)

        await store.document.arm_schedule(replace(DIGEST, fingerprint="f2", next_at=1500))

        changed = await the(store)
        assert (changed.fingerprint, changed.next_at, changed.paused) == ("f2", 1500, True)

    async def test_of_two_that_move_it_on_one_does(self, store: Store) -> None:
        await store.document.arm_schedule(DIGEST)

        first = await store.document.advance_schedule(
            "digest", 1000, next_at=2000, fired_at=1000, session_id="ses_1"
        )
        second = await store.document.advance_schedule(
            "digest", 1000, next_at=3000, fired_at=1000, session_id="ses_2"
        )

        assert (first, second) == (True, False)
        assert (await the(store)).session_id == "ses_1"

    async def test_a_schedule_may_have_no_next_instant(self, store: Store) -> None:
        await store.document.arm_schedule(DIGEST)
        await store.document.advance_schedule(
            "digest", 1000, next_at=None, fired_at=0, session_id=""
        )

        assert (await the(store)).next_at is None
        assert await store.document.advance_schedule(
            "digest", None, next_at=5000, fired_at=0, session_id=""
        )

    async def test_a_schedule_is_paused_and_resumed(self, store: Store) -> None:
        await store.document.arm_schedule(DIGEST)

        assert await store.document.pause_schedule("digest", True)
        assert (await the(store)).paused
        assert await store.document.pause_schedule("digest", False)
        assert not (await the(store)).paused
        assert not await store.document.pause_schedule("other", True)

    async def test_a_dropped_schedule_is_gone(self, store: Store) -> None:
        await store.document.arm_schedule(DIGEST)

        assert await store.document.drop_schedule("digest")
        assert not await store.document.drop_schedule("digest")

        assert await store.document.schedules() == []
