import pytest

from outlast.clock import Clock
from outlast.errors import InvalidDefinition, StoreCorrupt
from outlast.integration.connection.encryption import HEAD, NONCE, SecretBox

OLD, NEW = "an old key that has its forty characters", "a newer key that has forty characters too"


def box(*keys: str) -> SecretBox:
    return SecretBox(keys, Clock().token)


def test_a_secret_is_decrypted_for_its_context_and_is_not_readable_before() -> None:
    encrypted = box(OLD).encrypt(b"a secret", b"here")

    assert box(OLD).decrypt(encrypted, b"here") == b"a secret"
    assert b"secret" not in encrypted


def test_a_secret_of_one_context_is_not_decrypted_for_another() -> None:
    encrypted = box(OLD).encrypt(b"a secret", b"here")

    with pytest.raises(StoreCorrupt):
        box(OLD).decrypt(encrypted, b"there")


@pytest.mark.parametrize("byte", [HEAD, HEAD + NONCE, -1])
def test_a_changed_secret_is_not_decrypted(byte: int) -> None:
    encrypted = bytearray(box(OLD).encrypt(b"a secret", b"here"))
    encrypted[byte] ^= 1

    with pytest.raises(StoreCorrupt):
        box(OLD).decrypt(bytes(encrypted), b"here")


@pytest.mark.parametrize("length", [HEAD, HEAD + 4, HEAD + NONCE, HEAD + NONCE + 15])
def test_a_truncated_secret_is_not_decrypted(length: int) -> None:
    encrypted = box(OLD).encrypt(b"a secret", b"here")

    with pytest.raises(StoreCorrupt):
        box(OLD).decrypt(encrypted[:length], b"here")


def test_the_same_secret_is_never_encrypted_twice_in_the_same_way() -> None:
    one = box(OLD)

    assert (
        len({one.encrypt(b"a secret", b"here")[HEAD : HEAD + NONCE] for _ in range(1000)}) == 1000
    )


def test_the_first_key_encrypts_and_each_decrypts() -> None:
    before, between, after = box(OLD), box(NEW, OLD), box(NEW)
    old, new = before.encrypt(b"1", b""), between.encrypt(b"2", b"")

    assert [between.decrypt(each, b"") for each in (old, new)] == [b"1", b"2"]
    assert (after.decrypt(old, b""), after.decrypt(new, b"")) == (None, b"2")
    assert before.decrypt(new, b"") is None


@pytest.mark.parametrize("text", [b"", b"\x02abc", b"\x01"])
def test_a_text_that_was_never_encrypted_here_has_no_key_of_ours(text: bytes) -> None:
    assert box(OLD).decrypt(text, b"") is None


def test_a_key_is_long_and_is_not_shown() -> None:
    with pytest.raises(InvalidDefinition, match="32 characters"):
        box("short")
    with pytest.raises(InvalidDefinition, match="secret_key"):
        box()
    assert OLD not in repr(box(OLD))
