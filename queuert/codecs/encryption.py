"""Encryption with keys that change: AES-256 in Galois/Counter Mode, as the package ``cryptography`` does it."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from queuert.codecs.base import Codec, CodecError, Place
from queuert.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A key of 32 bytes, and the id by which payloads name it.

    Attributes:
        id: 1 to 64 letters, digits and ``. _ -``, the first a letter or a digit. It is stored in plain text; never give
            it to another key.
        secret: 32 random bytes. It is not shown by ``repr``.

    Raises:
        ConfigurationError: the id is not allowed, or the secret has another length.
    """

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        id: object = self.id
        secret: object = self.secret
        if not isinstance(id, str) or not _ID.fullmatch(id):
            raise ConfigurationError(
                "an encryption key has an id of 1 to 64 of A-Z a-z 0-9 . _ -, first a letter or digit"
            )
        if not isinstance(secret, bytes) or len(secret) != _KEY_BYTES:
            raise ConfigurationError(f"the encryption key {id!r} does not have {_KEY_BYTES} bytes")

    @classmethod
    def generate(cls, id: str) -> EncryptionKey:
        """A new random key."""
        return cls(id, os.urandom(_KEY_BYTES))

    def to_text(self) -> str:
        """The key as :func:`parse_keys` reads it. It is the secret itself: keep it where secrets are kept."""
        return f"{self.id}:{base64.b64encode(self.secret).decode()}"


Keys: TypeAlias = Sequence[EncryptionKey] | Callable[[], Sequence[EncryptionKey]]
"""Keys, or the function that fetches them."""


def parse_keys(text: str) -> list[EncryptionKey]:
    """Keys from text such as an environment variable: ``id:base64``, separated by commas or white space.

    Raises:
        ConfigurationError: it is no such text; the error does not repeat it.

    Example:
        >>> parse_keys("2030-01:MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
        [EncryptionKey(id='2030-01')]
    """
    return [_parsed(number, part) for number, part in enumerate(re.split(r"[\s,]+", text.strip(" \t\r\n,")), 1)]


def _parsed(number: int, part: str) -> EncryptionKey:
    id, colon, secret = part.partition(":")
    try:
        if colon:
            return EncryptionKey(id, base64.b64decode(secret, validate=True))
    except (binascii.Error, ValueError):
        pass
    raise ConfigurationError(f"encryption key {number} is not its id, a colon and the base64 of {_KEY_BYTES} bytes")


class EncryptionCodec(Codec):
    """Encrypts payloads, and proves when it reads them that they are what was written, for this job type and field.

    The first key encrypts; all of them decrypt. To change the key, first give the new one to every producer and worker
    as the last, then as the first; take the old one away when no row names it any more. A key is good for some billions
    of payloads (2 to the power of 32).

    What it needs comes with ``pip install queuert[encryption]``.

    Args:
        keys: the keys, or a function without arguments that returns them, which is called when they are first needed.
            With a function of a module the keys do not travel when a job type is sent to other processes.

    Raises:
        ConfigurationError: there is no key, two have one id, or the package ``cryptography`` is not installed.

    Example:
        >>> EncryptionCodec([EncryptionKey.generate("2030-02"), EncryptionKey.generate("2030-01")])
        EncryptionCodec(2030-02, 2030-01)
    """

    name = "aes-gcm"

    def __init__(self, keys: Keys) -> None:
        _cipher_class()
        self._keys = keys if callable(keys) else _checked(keys)

    def __repr__(self) -> str:
        return f"EncryptionCodec({'...' if callable(self._keys) else ', '.join(key.id for key in self._keys)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return EncryptionCodec, (self._keys,)

    @property
    def note(self) -> str:
        """The id of the key that encrypts."""
        return next(iter(self._ciphers))

    def encode(self, data: bytes, place: Place) -> bytes:
        """The data, encrypted with the first key under a random nonce, which comes first."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[place.note].encrypt(nonce, data, _bound(place))

    def decode(self, data: bytes, place: Place) -> bytes:
        """The data, decrypted with the key that it names."""
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(place.note)
        if cipher is None:
            raise CodecError(f"it is encrypted with a key that is not here; here are {', '.join(self._ciphers)}")
        if len(data) < _NONCE_BYTES + _TAG_BYTES:
            raise CodecError("it is cut off")
        try:
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(place))
        except InvalidTag:
            raise CodecError(
                "it was encrypted with another key of this id, or for another job type or field, or was changed since"
            ) from None

    @cached_property
    def _ciphers(self) -> dict[str, AESGCM]:
        """By the ids of their keys, the one that encrypts first."""
        cipher = _cipher_class()
        return {key.id: cipher(key.secret) for key in (self._fetched() if callable(self._keys) else self._keys)}

    def _fetched(self) -> tuple[EncryptionKey, ...]:
        assert callable(self._keys)
        try:
            return _checked(self._keys())
        except ConfigurationError as error:
            raise CodecError(str(error)) from None
        except Exception as error:
            # Its message may hold what it could not make a key of.
            raise CodecError(f"the function that fetches the keys raised {type(error).__name__}") from None


def _checked(keys: Sequence[EncryptionKey]) -> tuple[EncryptionKey, ...]:
    given = tuple(keys)
    for key in given:
        if not isinstance(key, EncryptionKey):
            raise ConfigurationError(f"EncryptionCodec takes EncryptionKey(id, secret), not {type(key).__name__}")
    ids = [key.id for key in given]
    twice = sorted({id for id in ids if ids.count(id) > 1})
    if twice:
        raise ConfigurationError(f"two encryption keys have the id {', '.join(twice)}")
    if not given:
        raise ConfigurationError("EncryptionCodec needs a key")
    return given


def _bound(place: Place) -> bytes:
    """What must be the same when a payload is read: unambiguous, as a list in JSON is."""
    return json.dumps(["queuert", place.job_type, place.field, place.note, *place.before]).encode()


def _cipher_class() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError("EncryptionCodec needs a package: pip install queuert[encryption]") from None
    return AESGCM
