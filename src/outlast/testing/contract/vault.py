"""Secrets are kept as given, and replaced by who knows the last; a hold is one's at a time."""

from __future__ import annotations

from msgspec.structs import replace

from outlast.store import Store, StoredSecret
from outlast.testing.clock import ManualClock
from outlast.testing.contract.subject import Subject

FIRST = StoredSecret(tenant="acme", name="github:ada", data=b"\x00sealed\xff", version=1)


class VaultContract(Subject):
    async def test_a_secret_is_found_by_its_tenant_and_name(self, store: Store) -> None:
        assert await store.document.keep_secret(FIRST, expected=None)

        assert await store.document.secret("acme", "github:ada") == FIRST
        assert await store.document.secret("other", "github:ada") is None
        assert await store.document.secret("acme", "github:bob") is None

    async def test_a_secret_that_is_there_is_not_kept_anew(self, store: Store) -> None:
        await store.document.keep_secret(FIRST, expected=None)

        assert not await store.document.keep_secret(replace(FIRST, data=b"other"), expected=None)

        assert await store.document.secret("acme", "github:ada") == FIRST

    async def test_a_secret_is_replaced_by_who_knows_its_version(self, store: Store) -> None:
        await store.document.keep_secret(FIRST, expected=None)
        second = replace(FIRST, data=b"second", version=2)
        third = replace(FIRST, data=b"third", version=2)

        assert await store.document.keep_secret(second, expected=1)
        assert not await store.document.keep_secret(third, expected=1)

        assert await store.document.secret("acme", "github:ada") == second

    async def test_a_secret_that_is_not_there_cannot_be_replaced(self, store: Store) -> None:
        assert not await store.document.keep_secret(FIRST, expected=1)

        assert await store.document.secret("acme", "github:ada") is None

    async def test_a_dropped_secret_is_gone(self, store: Store) -> None:
        await store.document.keep_secret(FIRST, expected=None)

        assert await store.document.drop_secret("acme", "github:ada")
        assert not await store.document.drop_secret("acme", "github:ada")

        assert await store.document.secret("acme", "github:ada") is None

    async def test_an_expired_secret_is_as_if_it_were_not_there(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.document.keep_secret(
            replace(FIRST, expires_at=clock.now() + 1000), expected=None
        )
        clock.advance(1000)

        assert await store.document.secret("acme", "github:ada") is None
        assert await store.document.keep_secret(FIRST, expected=None)
        assert await store.document.secret("acme", "github:ada") == FIRST

    async def test_a_hold_is_given_to_one_until_it_lets_go(self, store: Store) -> None:
        assert await store.document.hold("refresh", "w1", 1000)
        assert not await store.document.hold("refresh", "w2", 1000)
        assert await store.document.hold("other", "w2", 1000)

        await store.document.let_go("refresh", "w1")

        assert await store.document.hold("refresh", "w2", 1000)

    async def test_a_hold_runs_out(self, store: Store, clock: ManualClock) -> None:
        await store.document.hold("refresh", "w1", 1000)
        clock.advance(1000)

        assert await store.document.hold("refresh", "w2", 1000)

    async def test_a_hold_is_renewed_by_who_has_it_and_by_nobody_else_let_go(
        self, store: Store, clock: ManualClock
    ) -> None:
        await store.document.hold("refresh", "w1", 1000)
        clock.advance(500)
        assert await store.document.hold("refresh", "w1", 1000)
        await store.document.let_go("refresh", "w2")
        clock.advance(700)

        assert not await store.document.hold("refresh", "w2", 1000)
