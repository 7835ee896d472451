from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from outlast.clock import Clock
from outlast.errors import InvalidInput, InvalidName
from outlast.server.key import (
    KeyInfo,
    add_key,
    digest,
    find_key,
    find_principal,
    list_keys,
    mint,
    parse,
    revoke_key,
)
from outlast.server.principal import SCOPES, Principal
from outlast.stores.sqlite import MemoryStore


async def test_a_key_leads_to_whose_it_is() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    text, info = mint(clock, tenant="acme", name="till", scopes=["send", "read"])
    await add_key(store, info)

    found = await find_principal(store, text)

    assert found == Principal("acme", "till", frozenset({"read", "send"}), info.key_id)


async def test_of_a_key_only_the_id_and_a_digest_are_kept() -> None:
    text, info = mint(Clock(), tenant="acme", name="", scopes=["read"])
    parsed = parse(text)
    assert parsed is not None
    key_id, secret = parsed

    assert key_id == info.key_id
    assert info.digest == digest(secret) != secret
    assert len(secret) == 32
    assert secret not in repr(info)


async def test_the_secret_of_one_key_does_not_open_another() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    first, kept = mint(clock, tenant="a", name="", scopes=["read"])
    second, other = mint(clock, tenant="b", name="", scopes=["read"])
    await add_key(store, kept)
    await add_key(store, other)
    mixed = first.rpartition("_")[0] + "_" + (parse(second) or ("", ""))[1]

    assert await find_principal(store, mixed) is None


async def test_a_revoked_key_is_none() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    text, info = mint(clock, tenant="a", name="", scopes=["read"])
    await add_key(store, info)
    await revoke_key(store, info.key_id, 17)

    assert await find_principal(store, text) is None


@given(st.text(max_size=300) | st.text(max_size=300).map("outlast_{}".format))
def test_any_text_is_a_key_or_none(text: str) -> None:
    parsed = parse(text)

    if parsed is not None:
        key_id, secret = parsed
        assert text == f"outlast_{key_id.removeprefix('key_')}_{secret}"
        assert key_id.isascii()


@pytest.mark.parametrize("scopes", [[], ["write"], ["read", ""]])
def test_a_key_has_scopes_and_only_those_that_there_are(scopes: list[str]) -> None:
    with pytest.raises(InvalidInput):
        mint(Clock(), tenant="a", name="", scopes=scopes)


@pytest.mark.parametrize("tenant", ["", "\0", "x" * 300])
def test_a_key_is_a_tenants(tenant: str) -> None:
    with pytest.raises(InvalidName):
        mint(Clock(), tenant=tenant, name="", scopes=["read"])


@pytest.mark.parametrize("name", ["\0", "x" * 300])
def test_who_has_a_key_can_be_written_down(name: str) -> None:
    with pytest.raises(InvalidName):
        mint(Clock(), tenant="a", name=name, scopes=["read"])


def test_an_admin_may_do_everything_and_everybody_else_what_their_scopes_say() -> None:
    admin, reader = (
        Principal("a", "", frozenset({"admin"})),
        Principal("a", "", frozenset({"read"})),
    )

    assert all(admin.may(scope) for scope in SCOPES)
    assert [scope for scope in SCOPES if reader.may(scope)] == ["read"]
    assert not any(Principal("a", "").may(scope) for scope in SCOPES)


KEY = KeyInfo(
    key_id="key_1", tenant="acme", name="ci", scopes=("read", "send"), digest="d" * 64, created_at=5
)


async def test_a_key_is_found_by_its_id_as_it_was_kept() -> None:
    store = MemoryStore()
    await add_key(store, KEY)

    assert await find_key(store, "key_1") == KEY
    assert await find_key(store, "key_2") is None


async def test_keys_are_listed_oldest_first_and_by_tenant() -> None:
    store = MemoryStore()
    for key_id, tenant in (("key_2", "acme"), ("key_1", "acme"), ("key_3", "other")):
        await add_key(store, replace(KEY, key_id=key_id, tenant=tenant))

    assert [key.key_id for key in await list_keys(store)] == ["key_1", "key_2", "key_3"]
    assert [key.key_id for key in await list_keys(store, "acme")] == ["key_1", "key_2"]


async def test_a_key_is_revoked_once() -> None:
    store = MemoryStore()
    await add_key(store, KEY)

    assert await revoke_key(store, "key_1", 70)
    assert await revoke_key(store, "key_1", 90)
    assert not await revoke_key(store, "key_2", 70)

    assert await find_key(store, "key_1") == replace(KEY, revoked_at=70)
