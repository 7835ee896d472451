"""Sealing: AES-256-GCM under a key of the app's, bound to where the sealed thing belongs.

What was sealed for one place does not open at another. The first of several keys seals, each
of them opens: a new key is put before the old one, which goes when nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from outlast.errors import InvalidDefinition, StoreCorrupt

SHORTEST = 32
PURPOSE = b"outlast connections 1"
FORMAT = b"\x01"
ID, NONCE = 8, 12
HEAD = len(FORMAT) + ID


class SecretBox:
    """Seals and opens. `chance` gives a text that nobody can guess, another each time."""

    def __init__(self, keys: str | Sequence[str], chance: Callable[[], str]) -> None:
        derived = [derive(key) for key in ([keys] if isinstance(keys, str) else keys)]
        if not derived:
            raise InvalidDefinition("connections need a secret_key: Outlast(secret_key=…)")
        self._ciphers = {FORMAT + name(key): AESGCM(key) for key in derived}
        self._chance = chance

    def __repr__(self) -> str:
        return f"Seal({len(self._ciphers)} keys)"

    def seal(self, plain: bytes, place: bytes) -> bytes:
        """Return a text as nobody without the key can read or change it, or put it elsewhere."""
        head, cipher = next(iter(self._ciphers.items()))
        nonce = sha256(self._chance().encode()).digest()[:NONCE]
        return head + nonce + cipher.encrypt(nonce, plain, head + place)

    def open(self, sealed: bytes, place: bytes) -> bytes | None:
        """Return what was sealed for a place; None if it was under a key that we do not have."""
        head, nonce = sealed[:HEAD], sealed[HEAD : HEAD + NONCE]
        cipher = self._ciphers.get(head)
        if cipher is None:
            return None
        try:
            return cipher.decrypt(nonce, sealed[HEAD + NONCE :], head + place)
        except (InvalidTag, ValueError):
            raise StoreCorrupt("a sealed secret was changed, or belongs elsewhere") from None


def derive(key: str) -> bytes:
    if len(key) < SHORTEST:
        raise InvalidDefinition(
            f"a secret_key has {SHORTEST} characters or more, made by chance:"
            ' python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE).derive(key.encode())


def name(key: bytes) -> bytes:
    """Name a key without telling it."""
    return sha256(PURPOSE + key).digest()[:ID]
