from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.clock import Clock
from outlast.errors import InvalidInput, InvalidName
from outlast.server.key import digest, find_principal, mint, parse
from outlast.server.principal import SCOPES, Principal
from outlast.stores.sqlite import MemoryStore


async def test_a_key_leads_to_whose_it_is() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    text, info = mint(clock, tenant="acme", name="till", scopes=["send", "read"])
    await store.document.add_key(info)

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
    await store.document.add_key(kept)
    await store.document.add_key(other)
    mixed = first.rpartition("_")[0] + "_" + (parse(second) or ("", ""))[1]

    assert await find_principal(store, mixed) is None


async def test_a_revoked_key_is_none() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    text, info = mint(clock, tenant="a", name="", scopes=["read"])
    await store.document.add_key(info)
    await store.document.revoke_key(info.key_id, 17)

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
