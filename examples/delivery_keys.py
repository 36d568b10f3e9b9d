"""The keys with which servers sign and encrypt what they send each other, for ``federation_delivery``.

Needs the package ``cryptography``: ``pip install 'queuert[encryption]'``.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_KEY_BYTES = 32
_NONCE = bytes(12)
"""The same for all messages, which is safe because each has a secret of its own."""


class OwnKeys:
    """The private keys of a server; ``published`` is what it tells others of them."""

    def __init__(self) -> None:
        self._signing = Ed25519PrivateKey.generate()
        self._opening = X25519PrivateKey.generate()

    @property
    def published(self) -> dict[str, str]:
        """The public keys: ``verify`` for its signatures, ``seal`` for what only it shall read."""
        return {
            "verify": self._signing.public_key().public_bytes_raw().hex(),
            "seal": self._opening.public_key().public_bytes_raw().hex(),
        }

    def signature(self, text: str) -> str:
        """That this server says so."""
        return self._signing.sign(text.encode()).hex()

    def opened(self, message: str) -> str:
        """What was sealed for this server."""
        theirs, encrypted = bytes.fromhex(message)[:_KEY_BYTES], bytes.fromhex(message)[_KEY_BYTES:]
        own = self._opening.public_key().public_bytes_raw()
        shared = self._opening.exchange(X25519PublicKey.from_public_bytes(theirs))
        return _cipher(shared, theirs + own).decrypt(_NONCE, encrypted, None).decode()


def sealed(key: str, text: str) -> str:
    """A text that only the server with this public key can read."""
    once, theirs = X25519PrivateKey.generate(), bytes.fromhex(key)
    own = once.public_key().public_bytes_raw()
    shared = once.exchange(X25519PublicKey.from_public_bytes(theirs))
    return (own + _cipher(shared, own + theirs).encrypt(_NONCE, text.encode(), None)).hex()


def verified(key: str, text: str, signature: object) -> bool:
    """Whether the server with this public key has signed the text."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(str(signature)), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def _cipher(shared: bytes, between: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=between).derive(shared))
