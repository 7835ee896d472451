"""Keys to the server are kept, found and revoked."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from outlast.store import KeyInfo, Store
from outlast.testing.contract.subject import Subject

KEY = KeyInfo(
    key_id="key_1", tenant="acme", name="ci", scopes=("read", "send"), digest="d" * 64, created_at=5
)


def another(key_id: str, **changes: Any) -> KeyInfo:
    return replace(KEY, key_id=key_id, **changes)


class KeyContract(Subject):
    async def test_a_key_is_found_by_its_id_as_it_was_kept(self, store: Store) -> None:
        await store.document.add_key(KEY)

        assert await store.document.key("key_1") == KEY
        assert await store.document.key("key_2") is None

    async def test_keys_are_listed_oldest_first_and_by_tenant(self, store: Store) -> None:
        for key in (another("key_2"), KEY, another("key_3", tenant="other")):
            await store.document.add_key(key)

        assert [key.key_id for key in await store.document.keys()] == ["key_1", "key_2", "key_3"]
        assert [key.key_id for key in await store.document.keys("acme")] == ["key_1", "key_2"]

    async def test_a_revoked_key_says_since_when(self, store: Store) -> None:
        await store.document.add_key(KEY)

        assert await store.document.revoke_key("key_1", at=70)

        assert await store.document.key("key_1") == replace(KEY, revoked_at=70)

    async def test_a_key_is_revoked_once(self, store: Store) -> None:
        await store.document.add_key(KEY)
        await store.document.revoke_key("key_1", at=70)

        assert await store.document.revoke_key("key_1", at=90)

        assert await store.document.key("key_1") == replace(KEY, revoked_at=70)

    async def test_a_key_that_is_not_there_cannot_be_revoked(self, store: Store) -> None:
        await store.document.add_key(KEY)

        assert not await store.document.revoke_key("key_2", at=70)

        assert await store.document.key("key_1") == KEY
