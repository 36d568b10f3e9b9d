"""Encryption of payloads with rotating keys: AES-256 in Galois/Counter Mode, by the package ``cryptography``."""

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

from queuert.codecs.base import Codec, Place
from queuert.errors import CodecError, ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """A key of 32 bytes, with the id by which encrypted payloads refer to it.

    Attributes:
        id: 1 to 64 letters, digits and ``. _ -``, beginning with a letter or digit. It is stored in plain text; never
            use it for another key.
        secret: 32 random bytes. ``repr`` does not show it.

    Raises:
        ConfigurationError: the id is not allowed, or the secret does not have 32 bytes.
    """

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        id: object = self.id
        secret: object = self.secret
        if not isinstance(id, str) or not _ID.fullmatch(id):
            raise ConfigurationError(
                "id of an encryption key must be 1 to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit"
            )
        if not isinstance(secret, bytes) or len(secret) != _KEY_BYTES:
            raise ConfigurationError(f"secret of encryption key {id!r} must be {_KEY_BYTES} bytes")

    @classmethod
    def generate(cls, id: str) -> EncryptionKey:
        """Return a new random key."""
        return cls(id, os.urandom(_KEY_BYTES))

    def to_text(self) -> str:
        """Return the key as :func:`parse_keys` reads it. The text contains the secret: store it as one."""
        return f"{self.id}:{base64.b64encode(self.secret).decode()}"


Keys: TypeAlias = Sequence[EncryptionKey] | Callable[[], Sequence[EncryptionKey]]
"""Keys, or a function that returns them."""


def parse_keys(text: str) -> list[EncryptionKey]:
    """Return keys from text, such as an environment variable: ``id:base64``, separated by commas or white space.

    Raises:
        ConfigurationError: the text is not of that form; the message does not repeat it.

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
    raise ConfigurationError(
        f"encryption key {number} must be its id, a colon and the base64 of {_KEY_BYTES} bytes, as in 2030-01:MDEy..."
    )


class EncryptionCodec(Codec):
    """Encrypts payloads, and verifies on reading that they were written for this job type and field, and not changed.

    The first key encrypts; all of them decrypt. To rotate the key, first deploy the new one to all clients and workers
    as the last key, then as the first; remove the old one when no row refers to it any more. A key is good for some
    billions of payloads (2 to the power of 32).

    It needs ``pip install queuert[encryption]``.

    Args:
        keys: the keys, or a function without arguments that returns them, which is called when they are first needed.
            With a module-level function, the keys are not pickled with a job type.

    Raises:
        ConfigurationError: there is no key, two have the same id, or the package ``cryptography`` is not installed.

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
        """Return the data, encrypted with the first key, after the random nonce."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._ciphers[place.note].encrypt(nonce, data, _bound(place))

    def decode(self, data: bytes, place: Place) -> bytes:
        """Return the data, decrypted with the key that its note names.

        Raises:
            CodecError: the key is not here, or the data was changed.
        """
        from cryptography.exceptions import InvalidTag

        cipher = self._ciphers.get(place.note)
        if cipher is None:
            raise CodecError(
                f"the data is encrypted with a key that this program does not have; it has {', '.join(self._ciphers)}"
            )
        if len(data) < _NONCE_BYTES + _TAG_BYTES:
            raise CodecError("the data is truncated")
        try:
            return cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound(place))
        except InvalidTag:
            raise CodecError(
                "the data was encrypted with another key of this id, or for another job type or field, or was changed"
            ) from None

    @cached_property
    def _ciphers(self) -> dict[str, AESGCM]:
        """The ciphers by the ids of their keys; the first one encrypts."""
        cipher = _cipher_class()
        return {key.id: cipher(key.secret) for key in (self._fetched() if callable(self._keys) else self._keys)}

    def _fetched(self) -> tuple[EncryptionKey, ...]:
        assert callable(self._keys)
        try:
            return _checked(self._keys())
        except ConfigurationError as error:
            raise CodecError(str(error)) from None
        except Exception as error:
            # Its message may contain the key that it could not parse.
            raise CodecError(f"the function that returns the keys raised {type(error).__name__}") from None


def _checked(keys: Sequence[EncryptionKey]) -> tuple[EncryptionKey, ...]:
    given = tuple(keys)
    for key in given:
        if not isinstance(key, EncryptionKey):
            raise ConfigurationError(
                f"EncryptionCodec takes EncryptionKey(id, secret) objects, got {type(key).__name__}"
            )
    ids = [key.id for key in given]
    twice = sorted({id for id in ids if ids.count(id) > 1})
    if twice:
        raise ConfigurationError(f"ids of encryption keys must be unique, got {', '.join(twice)} twice")
    if not given:
        raise ConfigurationError("EncryptionCodec needs at least one key")
    return given


def _bound(place: Place) -> bytes:
    """Return the associated data, which must be equal on reading. A JSON list is unambiguous."""
    return json.dumps(["queuert", place.job_type, place.field, place.note, *place.before]).encode()


def _cipher_class() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ConfigurationError(
            "EncryptionCodec needs the package cryptography: pip install 'queuert[encryption]'"
        ) from None
    return AESGCM
