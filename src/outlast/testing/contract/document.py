"""Documents are kept as given, replaced by a writer that knows the version, and expire."""

from msgspec.structs import replace

from outlast.store import Document, Store
from outlast.testing.clock import ManualClock
from outlast.testing.contract.store_under_test import StoreUnderTest

FIRST = Document(
    kind="grant", tenant="acme", name="github:ada", version=1, data=b"\x00sealed\xff", due_at=1000
)


async def get(store: Store, name: str = FIRST.name) -> Document | None:
    return await store.document.get(FIRST.kind, FIRST.tenant, name)


class DocumentContract(StoreUnderTest):
    async def test_a_document_is_found_by_its_kind_tenant_and_name(self, store: Store) -> None:
        assert await store.document.put(FIRST, expected=None)

        assert await get(store) == FIRST
        assert await store.document.get("other", "acme", "github:ada") is None
        assert await store.document.get("grant", "other", "github:ada") is None
        assert await get(store, "github:bob") is None

    async def test_a_document_is_found_by_its_name_without_the_tenant(self, store: Store) -> None:
        await store.document.put(FIRST, expected=None)

        assert await store.document.find("grant", "github:ada") == FIRST
        assert await store.document.find("grant", "github:bob") is None
        assert await store.document.find("other", "github:ada") is None

    async def test_documents_are_listed_by_name(self, store: Store) -> None:
        names = ("github:bob", "github:ada", "git", "slack:ada")
        for name in names:
            await store.document.put(replace(FIRST, name=name), expected=None)
        await store.document.put(replace(FIRST, tenant="other", name="github:eve"), expected=None)
        await store.document.put(replace(FIRST, kind="other"), expected=None)

        everything = await store.document.scan("grant")
        assert [each.name for each in everything] == sorted([*names, "github:eve"])
        some = await store.document.scan("grant", tenant="acme", prefix="github:")
        assert [each.name for each in some] == ["github:ada", "github:bob"]
        assert some[0] == FIRST
        assert await store.document.scan("grant", prefix="github:%") == []

    async def test_a_document_that_is_there_is_not_written_as_a_new_one(self, store: Store) -> None:
        await store.document.put(FIRST, expected=None)

        assert not await store.document.put(replace(FIRST, data=b"other"), expected=None)

        assert await get(store) == FIRST

    async def test_a_document_is_replaced_by_a_writer_that_knows_its_version(
        self, store: Store
    ) -> None:
        await store.document.put(FIRST, expected=None)
        second = replace(FIRST, data=b"second", version=2, due_at=None)
        third = replace(FIRST, data=b"third", version=2)

        assert await store.document.put(second, expected=1)
        assert not await store.document.put(third, expected=1)

        assert await get(store) == second

    async def test_a_document_that_is_not_there_cannot_be_replaced(self, store: Store) -> None:
        assert not await store.document.put(FIRST, expected=1)

        assert await get(store) is None

    async def test_a_deleted_document_is_gone(self, store: Store) -> None:
        await store.document.put(FIRST, expected=None)

        assert await store.document.delete(FIRST)
        assert not await store.document.delete(FIRST)

        assert await get(store) is None

    async def test_a_document_that_has_changed_is_not_deleted(self, store: Store) -> None:
        await store.document.put(FIRST, expected=None)

        assert not await store.document.delete(replace(FIRST, version=2))
        assert not await store.document.delete(replace(FIRST, data=b"other"))
        assert not await store.document.delete(replace(FIRST, tenant="other"))

        assert await get(store) == FIRST

    async def test_an_expired_document_is_as_if_it_were_not_there(
        self, store: Store, clock: ManualClock
    ) -> None:
        brief = replace(FIRST, expires_at=clock.now() + 1000)
        await store.document.put(brief, expected=None)
        assert await get(store) == brief
        clock.advance(1000)

        assert await get(store) is None
        assert await store.document.find(FIRST.kind, FIRST.name) is None
        assert await store.document.scan(FIRST.kind) == []
        assert not await store.document.put(replace(brief, version=2), expected=1)
        assert await store.document.put(FIRST, expected=None)
        assert await get(store) == FIRST

    async def test_an_expired_document_is_not_deleted_for_anybody(
        self, store: Store, clock: ManualClock
    ) -> None:
        brief = replace(FIRST, expires_at=clock.now() + 1000)
        await store.document.put(brief, expected=None)
        clock.advance(1000)

        assert not await store.document.delete(brief)

    async def test_a_lifetime_counts_from_now_by_the_clock_of_the_store(
        self, store: Store, clock: ManualClock
    ) -> None:
        assert await store.document.put(FIRST, expected=None, lifetime=1000)
        assert not await store.document.put(FIRST, expected=None, lifetime=1000)
        clock.advance(500)
        assert await store.document.put(replace(FIRST, version=2), expected=1, lifetime=1000)
        clock.advance(700)
        assert await get(store) is not None
        clock.advance(300)

        assert await get(store) is None
