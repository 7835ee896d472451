"""The log as readers and new owners get it: in order, in pages, from a snapshot on."""

import pytest

from outlast.core import record as r
from outlast.core.lane import FOLD
from outlast.core.record import Entry
from outlast.errors import CursorAhead, UnknownSession
from outlast.store import FoldSnapshot, Loaded, Store
from outlast.store.log import FULL_PAGE
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import (
    admit,
    commit,
    delta,
    end_of,
    message,
    park,
    put,
    read_all,
    start_and_claim,
    write,
)
from outlast.testing.contract.store_under_test import StoreUnderTest


async def write_log(store: Store, clock: ManualClock) -> str:
    """Make a log of an admission of two records and commits of five, one and three."""
    claim = await start_and_claim(store, clock)
    for number, count in enumerate((5, 1, 3)):
        records = [delta(f"{number}.{n}") for n in range(count)]
        await write(store, commit(claim, *records, number=number))
    return claim.session_id


async def write_much(store: Store, clock: ManualClock, count: int) -> str:
    """A session with a start of two records and four commits of `count`, of 5 MB each."""
    claim = await start_and_claim(store, clock)
    for number in range(4):
        records = [delta(f"{number}.{n} " * (1_250_000 // count)) for n in range(count)]
        await write(store, commit(claim, *records, number=number))
    return claim.session_id


def offsets(entries: tuple[Entry, ...]) -> list[int]:
    return [entry.offset for entry in entries]


def values_of(loaded: Loaded) -> list[str]:
    return [e.record.values[0] for e in loaded.entries if isinstance(e.record, r.StateChanged)]


class ReadingContract(StoreUnderTest):
    async def test_a_log_is_read_from_its_beginning(self, store: Store, clock: ManualClock) -> None:
        session = await write_log(store, clock)
        page = await store.log.read(session, 0)
        assert offsets(page.entries) == list(range(1, 12))
        assert (page.cursor, page.end) == (11, 11)

    async def test_a_page_ends_where_a_commit_ends(self, store: Store, clock: ManualClock) -> None:
        session = await write_log(store, clock)
        page = await store.log.read(session, 2, limit=2)
        assert offsets(page.entries) == [3, 4, 5, 6, 7]
        assert (page.cursor, page.end) == (7, 11)

    async def test_a_cursor_may_stand_inside_a_commit(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = await write_log(store, clock)
        page = await store.log.read(session, 4, limit=1)
        assert offsets(page.entries) == [5, 6, 7]

    @pytest.mark.parametrize("limit", [1, 2, 4, 100])
    async def test_pages_give_every_entry_once(
        self, store: Store, clock: ManualClock, limit: int
    ) -> None:
        session = await write_log(store, clock)
        cursor, read = 0, []
        while entries := (page := await store.log.read(session, cursor, limit)).entries:
            read += offsets(entries)
            cursor = page.cursor
        assert read == list(range(1, 12))

    async def test_a_reader_at_the_end_gets_nothing_and_keeps_its_cursor(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = await write_log(store, clock)
        page = await store.log.read(session, 11)
        assert (page.entries, page.cursor, page.end) == ((), 11, 11)

    @pytest.mark.parametrize("cursor", [12, 2**31, 2**32 + 1, 10**16 - 1])
    async def test_a_cursor_beyond_the_end_is_an_error(
        self, store: Store, clock: ManualClock, cursor: int
    ) -> None:
        session = await write_log(store, clock)
        await write_log(store, clock)  # whose rows may stand behind those of the first
        with pytest.raises(CursorAhead):
            await store.log.read(session, cursor)
        page = await store.log.read_back(session, cursor, 1000)
        assert [entry.offset for entry in page.entries] == list(range(1, 12))

    async def test_a_page_and_a_load_name_the_record_that_they_follow(
        self, store: Store, clock: ManualClock
    ) -> None:
        """By its checksum a reader knows that the log is still the one that it has read."""
        session = await write_log(store, clock)
        entries = await read_all(store, session)
        assert len({entry.checksum for entry in entries}) > 3
        for entry in entries:
            page = await store.log.read(session, entry.offset)
            assert page.checksum == entry.checksum
            loaded = await store.log.load(session, "main", after=entry.offset)
            assert loaded.checksum == entry.checksum
        assert (await store.log.read(session, 0)).checksum == ""
        assert (await store.log.load(session, "main", after=0)).checksum == ""
        assert (await store.log.load(session, "main", after=12)).checksum == ""

    async def test_two_sessions_with_the_same_words_have_other_checksums(
        self, store: Store, clock: ManualClock
    ) -> None:
        first, second = [await write_log(store, clock) for _ in range(2)]
        checksums = [(await store.log.read(session, 2)).checksum for session in (first, second)]
        assert checksums[0] != checksums[1]

    async def test_dropped_snapshots_are_gone_and_the_log_is_whole(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        kept = FoldSnapshot(2, FOLD, b"state")
        await write(store, commit(claim, put("a"), snapshot=kept, slices=kept))
        other = await start_and_claim(store, clock, held=[claim])
        await write(store, commit(other, put("b"), snapshot=kept, slices=kept))
        await store.log.drop_snapshots(claim.session_id)
        await store.log.drop_snapshots(clock.new_id("ses"))
        loaded = await store.log.load(claim.session_id, "main")
        assert (loaded.snapshot, loaded.slices) == (None, None)
        assert offsets(loaded.entries) == [1, 2, 3]
        untouched = await store.log.load(other.session_id, "main")
        assert (untouched.snapshot, untouched.slices) == (kept, kept)

    async def test_an_unknown_session_cannot_be_read(
        self, store: Store, clock: ManualClock
    ) -> None:
        nobody = clock.new_id("ses")
        with pytest.raises(UnknownSession):
            await store.log.read(nobody, 0)
        with pytest.raises(UnknownSession):
            await store.log.read_back(nobody, 1)
        with pytest.raises(UnknownSession):
            await store.log.load(nobody, "main")

    @pytest.mark.parametrize("count", [1, 100], ids=["one large value", "many small ones"])
    async def test_a_page_that_holds_enough_bytes_ends_however_few_entries_there_are(
        self, store: Store, clock: ManualClock, count: int
    ) -> None:
        session = await write_much(store, clock, count)
        end = 2 + 4 * count
        page = await store.log.read(session, 0)
        assert offsets(page.entries) == list(range(1, 3 + 2 * count))
        assert (page.cursor, page.end) == (2 + 2 * count, end)
        page = await store.log.read(session, page.cursor)
        assert (offsets(page.entries)[-1], page.cursor, page.end) == (end, end, end)
        page = await store.log.read_back(session, end + 1, end)
        assert offsets(page.entries) == list(range(3 + 2 * count, end + 1))
        assert page.cursor == 3 + 2 * count
        page = await store.log.read_back(session, page.cursor, end)
        assert offsets(page.entries) == list(range(3, 3 + 2 * count))

    async def test_a_commit_that_no_page_could_hold_is_a_page_of_its_own(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        large = [delta(f"{number}" * FULL_PAGE) for number in range(2)]
        await write(store, commit(claim, *large))
        await write(store, commit(claim, delta(), number=1))
        page = await store.log.read(claim.session_id, 2)
        assert [entry.record for entry in page.entries] == large
        assert offsets((await store.log.read(claim.session_id, page.cursor)).entries) == [5]

    @pytest.mark.parametrize("limit", [1, 2, 4, 100])
    async def test_pages_read_backwards_give_every_entry_once(
        self, store: Store, clock: ManualClock, limit: int
    ) -> None:
        session = await write_log(store, clock)
        before: int = 12
        read: list[int] = []
        while entries := (page := await store.log.read_back(session, before, limit)).entries:
            read = offsets(entries) + read
            assert page.cursor == entries[0].offset
            before = page.cursor
        assert read == list(range(1, 12))

    async def test_reading_back_starts_just_before_an_offset(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = await write_log(store, clock)
        page = await store.log.read_back(session, 6, limit=1)
        assert page.entries[-1].offset == 5
        assert page.end == 11

    async def test_the_entries_of_one_lane_are_read_page_by_page(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        for number in range(4):
            await admit(store, message(clock, claim.session_id, lane=f"lane {number % 2}"))
        await write(store, commit(claim, delta("one"), delta("two"), delta("three")))
        everything = await read_all(store, claim.session_id)

        for lane in ("main", "lane 0", "lane 1", "no such lane"):
            found: list[Entry] = []
            cursor, checksum = 0, ""
            while (page := await store.log.read(claim.session_id, cursor, 2, lane=lane)).entries:
                assert page.checksum == checksum
                found += page.entries
                cursor, checksum = page.cursor, found[-1].checksum
            assert found == [entry for entry in everything if entry.lane == lane]
        [second] = (await store.log.read(claim.session_id, 4, lane="lane 0")).entries
        assert second.offset == 5

    async def test_a_lane_is_loaded_without_the_words_of_other_lanes(
        self, store: Store, clock: ManualClock
    ) -> None:
        main = await start_and_claim(store, clock)
        await admit(store, message(clock, main.session_id, lane="notes"))
        await write(store, commit(main, delta()))
        loaded = await store.log.load(main.session_id, "main")
        assert offsets(loaded.entries) == [1, 2, 4]
        assert (loaded.snapshot, loaded.slices) == (None, None)
        assert loaded.last_at == clock.now()

    async def test_a_lane_is_loaded_with_what_other_lanes_did_to_the_session(
        self, store: Store, clock: ManualClock
    ) -> None:
        main = await start_and_claim(store, clock)
        notes = await admit(store, message(clock, main.session_id, lane="notes"))
        await write(store, commit(main, put('"a"')))
        await write(store, commit(main, delta(), number=1))
        await write(store, park(main, r.SessionEnded(), number=2))
        loaded = await store.log.load(main.session_id, "notes")
        found = {type(e.record) for e in loaded.entries if e.lane == "main"}
        assert found >= {r.SessionStarted, r.StateChanged, r.SessionEnded}
        assert notes.offset in offsets(loaded.entries)

    async def test_a_lane_is_loaded_after_an_offset(self, store: Store, clock: ManualClock) -> None:
        session = await write_log(store, clock)
        assert offsets((await store.log.load(session, "main", after=5)).entries) == list(
            range(6, 12)
        )
        assert (await store.log.load(session, "main", after=11)).entries == ()

    async def test_a_lane_is_loaded_from_its_snapshot_on(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        lane, slices = FoldSnapshot(2, FOLD, b"lane" * 1_000), FoldSnapshot(2, FOLD, b"slices")
        await write(store, commit(claim, delta(), snapshot=lane, slices=slices))
        loaded = await store.log.load(claim.session_id, "main")
        assert (loaded.snapshot, loaded.slices) == (lane, slices)
        assert offsets(loaded.entries) == [3]

    async def test_a_newer_snapshot_replaces_an_older_one(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta(), snapshot=FoldSnapshot(2, FOLD, b"old")))
        await write(store, commit(claim, delta(), number=1, snapshot=FoldSnapshot(3, FOLD, b"new")))
        loaded = await store.log.load(claim.session_id, "main")
        assert loaded.snapshot == FoldSnapshot(3, FOLD, b"new")
        assert offsets(loaded.entries) == [4]

    async def test_a_snapshot_of_another_fold_is_ignored(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        other = FoldSnapshot(2, FOLD + 1, b"made by other rules")
        await write(store, commit(claim, put('"a"'), snapshot=other, slices=other))
        loaded = await store.log.load(claim.session_id, "main")
        assert (loaded.snapshot, loaded.slices) == (None, None)
        assert offsets(loaded.entries) == [1, 2, 3]

    async def test_a_lane_has_no_snapshot_of_another_lane(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await admit(store, message(clock, claim.session_id, lane="notes"))
        slices = FoldSnapshot(2, FOLD, b"slices")
        lane = FoldSnapshot(2, FOLD, b"lane")
        await write(store, commit(claim, delta(), snapshot=lane, slices=slices))
        loaded = await store.log.load(claim.session_id, "notes")
        assert (loaded.snapshot, loaded.slices) == (None, slices)

    async def test_slice_changes_since_the_slices_snapshot_are_loaded_with_a_later_lane(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, put('"a"')))
        await write(store, commit(claim, put('"b"'), number=1, slices=FoldSnapshot(3, FOLD, b"s")))
        await write(store, commit(claim, delta(), number=2, snapshot=FoldSnapshot(4, FOLD, b"l")))
        loaded = await store.log.load(claim.session_id, "main")
        assert loaded.snapshot == FoldSnapshot(4, FOLD, b"l")
        assert loaded.slices == FoldSnapshot(3, FOLD, b"s")
        assert '"b"' in values_of(loaded)
        assert 5 in offsets(loaded.entries)

    async def test_slice_changes_are_loaded_whole_where_no_slices_snapshot_is(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, delta(), put('"a"')))
        await write(store, commit(claim, delta(), number=1, snapshot=FoldSnapshot(4, FOLD, b"l")))
        loaded = await store.log.load(claim.session_id, "main")
        assert values_of(loaded) == ['"a"']
        assert offsets(loaded.entries) == [4, 5]

    async def test_slice_changes_that_the_slices_snapshot_holds_are_not_loaded_again(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await write(store, commit(claim, put('"a"')))
        await write(store, commit(claim, put('"b"'), number=1, slices=FoldSnapshot(3, FOLD, b"s")))
        loaded = await store.log.load(claim.session_id, "main")
        assert (loaded.snapshot, loaded.slices) == (None, FoldSnapshot(3, FOLD, b"s"))
        assert values_of(loaded) == ['"b"']

    async def test_of_another_lanes_commit_only_what_concerns_all_lanes_is_loaded(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        await admit(store, message(clock, claim.session_id, lane="notes"))
        await write(store, commit(claim, delta(), put('"a"'), delta(), r.SessionEnded()))
        loaded = await store.log.load(claim.session_id, "notes")
        assert offsets(loaded.entries) == [1, 3, 5, 7]

    async def test_the_tail_is_measured_from_the_snapshot_on(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        words = [delta(f"{n * 7919:x}") for n in range(50)]
        await write(store, commit(claim, *words))
        before = (await store.log.load(claim.session_id, "main")).tail_bytes
        end = await end_of(store, claim.session_id)
        await write(store, commit(claim, delta(), number=1, snapshot=FoldSnapshot(end, FOLD, b"")))
        after = (await store.log.load(claim.session_id, "main")).tail_bytes
        assert before > after > 0

    async def test_loading_and_reading_give_the_same_entries(
        self, store: Store, clock: ManualClock
    ) -> None:
        session = await write_log(store, clock)
        loaded = await store.log.load(session, "main")
        assert list(loaded.entries) == list(await read_all(store, session))
        tail = await store.log.load(session, "main", after=8)
        assert list(tail.entries) == list((await store.log.read(session, 8)).entries)

    async def test_a_new_lane_is_loaded_with_its_sessions_start(
        self, store: Store, clock: ManualClock
    ) -> None:
        claim = await start_and_claim(store, clock)
        receipt = await admit(store, message(clock, claim.session_id, lane="notes"))
        loaded = await store.log.load(claim.session_id, "notes")
        assert type(loaded.entries[0].record) is r.SessionStarted
        assert loaded.entries[-1].offset == receipt.offset
