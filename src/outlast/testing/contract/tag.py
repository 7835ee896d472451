"""Sessions are listed by the tags that they were started with."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from outlast.core import record as r
from outlast.store import FailureFilter, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.builder import admit, new_session
from outlast.testing.contract.failure import fail
from outlast.testing.contract.store_under_test import StoreUnderTest

URGENT = {"customer": "42", "urgency": "high"}


async def start(
    store: Store, clock: ManualClock, tags: Mapping[str, str], parent: str = "", **changes: Any
) -> str:
    """Start a session a moment after the one before; its record says what its tags are."""
    clock.advance(1)
    admission = new_session(clock, tags=tags, parent=parent, **changes)
    started = admission.records[0]
    assert isinstance(started, r.SessionStarted)
    above = r.Parent(session_id=parent, lane="main", request_id="req") if parent else None
    records = (replace(started, tags=dict(tags), parent=above), *admission.records[1:])
    return (await admit(store, replace(admission, records=records))).session_id


async def tagged(store: Store, **filters: Any) -> list[str]:
    return [info.session_id for info in await store.listing.sessions(**filters)]


class TagContract(StoreUnderTest):
    async def test_a_session_is_shown_with_its_tags(self, store: Store, clock: ManualClock) -> None:
        plain, urgent = await start(store, clock, {}), await start(store, clock, URGENT)

        shown = [await store.listing.session(name) for name in (urgent, plain)]

        assert [info.tags for info in shown if info] == [URGENT, {}]
        assert [info.tags for info in await store.listing.sessions()] == [URGENT, {}]

    async def test_those_with_all_tags_are_listed_newest_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        await start(store, clock, {})
        first = await start(store, clock, {"customer": "42"})
        await start(store, clock, {"customer": "4"})
        await start(store, clock, {"buyer": "42", "urgency": "high"})
        second = await start(store, clock, URGENT)

        assert await tagged(store, tags={"customer": "42"}) == [second, first]
        assert await tagged(store, tags=URGENT) == [second]
        assert await tagged(store, tags={**URGENT, "team": "refunds"}) == []
        assert await tagged(store, tags={"urgency": "42"}) == []

    async def test_names_and_values_are_taken_as_they_are(
        self, store: Store, clock: ManualClock
    ) -> None:
        odd = {"a.b": 'c"d', "e/f-g": "50%_of=it", "n": "0042", "z": "ü☃ 😀"}
        found = await start(store, clock, odd)
        await start(store, clock, {"a": "b", "e/f-g": "50x_of=it", "n": "42"})

        for name, value in odd.items():
            assert await tagged(store, tags={name: value}) == [found]
        assert await tagged(store, tags=odd) == [found]

    async def test_a_tag_is_looked_for_in_one_tenant_or_in_all(
        self, store: Store, clock: ManualClock
    ) -> None:
        ours = await start(store, clock, URGENT, tenant="acme")
        theirs = await start(store, clock, URGENT, tenant="umbrella")

        assert await tagged(store, tags=URGENT) == [theirs, ours]
        assert await tagged(store, tags=URGENT, tenant="acme") == [ours]
        assert await tagged(store, tags=URGENT, tenant="nobody") == []

    async def test_a_list_by_tags_is_read_page_by_page(
        self, store: Store, clock: ManualClock
    ) -> None:
        names = [await start(store, clock, URGENT) for _ in range(5)]

        for filters in ({}, {"tenant": "default"}):
            first = await tagged(store, tags=URGENT, limit=2, **filters)
            second = await tagged(store, tags=URGENT, limit=2, before=first[-1], **filters)
            rest = await tagged(store, tags=URGENT, limit=2, before=second[-1], **filters)
            assert [*first, *second, *rest] == names[::-1]

    async def test_tags_go_together_with_every_other_filter(
        self, store: Store, clock: ManualClock
    ) -> None:
        above = (await fail(store, clock, tags=URGENT, agent="clerk")).session_id
        below = await start(store, clock, {"customer": "42"}, parent=above)
        failed = FailureFilter()

        assert await tagged(store, tags=URGENT, agent="clerk") == [above]
        assert await tagged(store, tags=URGENT, agent="support") == []
        assert await tagged(store, tags={"customer": "42"}, status="queued") == [below]
        assert await tagged(store, tags={"customer": "42"}, status="failed") == [above]
        assert await tagged(store, tags=URGENT, failed=failed) == [above]
        assert await tagged(store, tags=URGENT, failed=failed, tenant="default") == [above]
        assert await tagged(store, tags={"customer": "4"}, failed=failed) == []
        assert await tagged(store, tags={"customer": "42"}, parent=above) == [below]
        assert await tagged(store, tags=URGENT, parent=above) == []

    async def test_no_erased_session_is_found_by_its_tags(
        self, store: Store, clock: ManualClock
    ) -> None:
        gone, left = [await start(store, clock, URGENT) for _ in range(2)]

        await store.log.erase(gone)

        assert await tagged(store, tags=URGENT) == [left]
        assert await tagged(store, tags=URGENT, tenant="default") == [left]

    async def test_a_repeated_start_keeps_the_tags_of_the_first(
        self, store: Store, clock: ManualClock
    ) -> None:
        first = new_session(clock, tags=URGENT, dispatch_id="order-17")
        await admit(store, first)

        again = await admit(store, replace(first, tags={"customer": "43"}))

        assert again.duplicate
        assert await tagged(store, tags=URGENT) == [again.session_id]
        assert await tagged(store, tags={"customer": "43"}) == []
