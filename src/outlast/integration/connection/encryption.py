"""Encryption of secrets: AES-256-GCM under the app's key, bound to a context.

A secret that was encrypted for one context cannot be decrypted for another. The first of several
keys encrypts and all of them decrypt: put a new key before the old one, and remove that when
nothing uses it.
"""

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
    """Encrypts and decrypts. `random_text` returns a new unguessable text at each call."""

    def __init__(self, keys: str | Sequence[str], random_text: Callable[[], str]) -> None:
        derived = [derive(key) for key in ([keys] if isinstance(keys, str) else keys)]
        if not derived:
            raise InvalidDefinition(
                "connections need a secret_key: ConnectionSettings([…], secret_key=…)"
            )
        # By an id of the key, so that no key is tried in vain on another's text.
        self._ciphers = {FORMAT + name(key): AESGCM(key) for key in derived}
        self._random_text = random_text

    def __repr__(self) -> str:
        return f"SecretBox({len(self._ciphers)} keys)"

    def encrypt(self, plain: bytes, context: bytes) -> bytes:
        """Return a text that cannot be read, changed or used for another context without a key."""
        head, cipher = next(iter(self._ciphers.items()))
        nonce = sha256(self._random_text().encode()).digest()[:NONCE]
        # The context is authenticated and not stored: a reader has to name the owner of the text,
        # so a text that was moved to another owner's place cannot be decrypted.
        return head + nonce + cipher.encrypt(nonce, plain, head + context)

    def decrypt(self, encrypted: bytes, context: bytes) -> bytes | None:
        """Return the text that was encrypted for a context; None if we do not have its key."""
        head, nonce = encrypted[:HEAD], encrypted[HEAD : HEAD + NONCE]
        cipher = self._ciphers.get(head)
        if cipher is None:
            return None
        try:
            return cipher.decrypt(nonce, encrypted[HEAD + NONCE :], head + context)
        except (InvalidTag, ValueError):
            raise StoreCorrupt(
                "an encrypted secret was changed, or belongs to another account"
            ) from None


def derive(key: str) -> bytes:
    if len(key) < SHORTEST:
        raise InvalidDefinition(
            f"a secret_key has {SHORTEST} characters or more, at random:"
            ' python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=PURPOSE).derive(key.encode())


def name(key: bytes) -> bytes:
    """Return an id of a key from which the key cannot be found."""
    return sha256(PURPOSE + key).digest()[:ID]
