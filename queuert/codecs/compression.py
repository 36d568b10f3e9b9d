"""Compression of payloads."""

from __future__ import annotations

import zlib

from queuert.codecs.base import Codec, Place
from queuert.errors import CodecError, ConfigurationError


class ZlibCodec(Codec):
    """Compresses payloads with zlib. Put it before encryption, as encrypted data cannot be compressed.

    Do not compress secrets together with text that an attacker can choose: the length reveals repetitions.

    Args:
        level: from 1, the fastest, to 9, the smallest.

    Raises:
        ConfigurationError: the level is out of range.
    """

    name = "zlib"

    def __init__(self, level: int = 6) -> None:
        if level not in range(1, 10):
            raise ConfigurationError(f"level of ZlibCodec must be an integer between 1 and 9, got {level!r}")
        self.level = level

    def __repr__(self) -> str:
        return f"ZlibCodec(level={self.level})"

    def encode(self, data: bytes, place: Place) -> bytes:
        """Return the data, compressed."""
        return zlib.compress(data, self.level)

    def decode(self, data: bytes, place: Place) -> bytes:
        """Return the data, decompressed. A few bytes can expand to gigabytes, so decompression stops at the limit.

        Raises:
            CodecError: the data is damaged, or longer than the limit.
        """
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(data, place.max_bytes + 1)
        except zlib.error:
            raise CodecError("the data is not zlib data") from None
        if len(found) > place.max_bytes:
            raise CodecError(f"the data must be at most {place.max_bytes} bytes when decompressed")
        if not unpacking.eof or unpacking.unused_data:
            raise CodecError("the data is truncated, or has bytes after its end")
        return found
