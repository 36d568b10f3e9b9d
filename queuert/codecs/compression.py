"""Compression."""

from __future__ import annotations

import zlib

from queuert.codecs.base import Codec, CodecError, Place
from queuert.errors import ConfigurationError


class ZlibCodec(Codec):
    """Compresses payloads with zlib. It belongs before encryption, since what is encrypted cannot be compressed.

    Do not compress secrets together with what a stranger chooses: the length tells of repetitions.

    Args:
        level: from 1, the fastest, to 9, the smallest.

    Raises:
        ConfigurationError: the level is out of range.
    """

    name = "zlib"

    def __init__(self, level: int = 6) -> None:
        if level not in range(1, 10):
            raise ConfigurationError(f"the level of ZlibCodec is {level!r}: from 1 to 9")
        self.level = level

    def __repr__(self) -> str:
        return f"ZlibCodec(level={self.level})"

    def encode(self, data: bytes, place: Place) -> bytes:
        """The data, compressed."""
        return zlib.compress(data, self.level)

    def decode(self, data: bytes, place: Place) -> bytes:
        """The data as it was. A small text can stand for gigabytes; nothing beyond the limit is unpacked."""
        unpacking = zlib.decompressobj()
        try:
            found = unpacking.decompress(data, place.max_bytes + 1)
        except zlib.error:
            raise CodecError("it is no zlib data") from None
        if len(found) > place.max_bytes:
            raise CodecError(f"more than {place.max_bytes} bytes")
        if not unpacking.eof or unpacking.unused_data:
            raise CodecError("it is cut off, or something follows it")
        return found
