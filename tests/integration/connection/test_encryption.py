import pytest

from outlast.clock import Clock
from outlast.errors import InvalidDefinition, StoreCorrupt
from outlast.integration.connection.encryption import HEAD, NONCE, SecretBox

OLD, NEW = "an old key that has its forty characters", "a newer key that has forty characters too"


def seal(*keys: str) -> SecretBox:
    return SecretBox(keys, Clock().token)


def test_what_was_sealed_opens_at_its_place_and_shows_nothing() -> None:
    sealed = seal(OLD).seal(b"a secret", b"here")

    assert seal(OLD).open(sealed, b"here") == b"a secret"
    assert b"secret" not in sealed


def test_what_was_sealed_for_one_place_does_not_open_at_another() -> None:
    sealed = seal(OLD).seal(b"a secret", b"here")

    with pytest.raises(StoreCorrupt):
        seal(OLD).open(sealed, b"there")


@pytest.mark.parametrize("byte", [HEAD, HEAD + NONCE, -1])
def test_what_was_changed_does_not_open(byte: int) -> None:
    sealed = bytearray(seal(OLD).seal(b"a secret", b"here"))
    sealed[byte] ^= 1

    with pytest.raises(StoreCorrupt):
        seal(OLD).open(bytes(sealed), b"here")


@pytest.mark.parametrize("length", [HEAD, HEAD + 4, HEAD + NONCE, HEAD + NONCE + 15])
def test_what_was_cut_off_does_not_open(length: int) -> None:
    sealed = seal(OLD).seal(b"a secret", b"here")

    with pytest.raises(StoreCorrupt):
        seal(OLD).open(sealed[:length], b"here")


def test_the_same_is_never_sealed_twice_in_the_same_way() -> None:
    one = seal(OLD)

    assert len({one.seal(b"a secret", b"here")[HEAD : HEAD + NONCE] for _ in range(1000)}) == 1000


def test_the_first_key_seals_and_each_opens() -> None:
    before, between, after = seal(OLD), seal(NEW, OLD), seal(NEW)
    old, new = before.seal(b"1", b""), between.seal(b"2", b"")

    assert [between.open(each, b"") for each in (old, new)] == [b"1", b"2"]
    assert (after.open(old, b""), after.open(new, b"")) == (None, b"2")
    assert before.open(new, b"") is None


@pytest.mark.parametrize("text", [b"", b"\x02abc", b"\x01"])
def test_what_was_never_sealed_here_is_under_no_key_of_ours(text: bytes) -> None:
    assert seal(OLD).open(text, b"") is None


def test_a_key_is_long_and_is_not_shown() -> None:
    with pytest.raises(InvalidDefinition, match="32 characters"):
        seal("short")
    with pytest.raises(InvalidDefinition, match="secret_key"):
        seal()
    assert OLD not in repr(seal(OLD))
