"""Ids: UUIDs of version 7 (RFC 9562), so that neighbours in time are neighbours in the index."""

from __future__ import annotations

import os
import time
import uuid
from functools import lru_cache

_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The digit that says of what kind the UUID is, and has two random bits."""


def new_id() -> str:
    """A fresh id: milliseconds since 1970 and 74 random bits, in the usual 36 characters."""
    noise = os.urandom(10).hex()
    return f"{_head()}-7{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[7:19]}"


def new_ids(count: int) -> list[str]:
    """So many fresh ids, in ascending order: rows that are written together are neighbours in the index."""
    if count == 1:
        return [new_id()]
    joined = joined_ids(count).decode()
    return sorted(joined[at : at + ID_LENGTH] for at in range(0, len(joined), ID_LENGTH))


ID_LENGTH = 36
"""Characters of an id that was made here."""


def joined_ids(count: int) -> bytearray:
    """Fresh ids, one behind the other: milliseconds since 1970, 12 bits that count, and 60 random ones.

    They ascend, but that of more than 4,096 some share their count. They are made letter by letter, each letter for all
    ids at once, in a fraction of the time of one id after the other.
    """
    counted, noise = _counter(count), os.urandom(8 * count).hex().encode()
    ids = bytearray(f"{_head()}-7000-8000-000000000000".encode() * count)
    for place in range(3):
        ids[15 + place :: ID_LENGTH] = counted[place::3]
    for place, at in enumerate((20, 21, 22, *range(24, 36))):
        ids[at::ID_LENGTH] = noise[place::16]
    return ids


def _head() -> str:
    stamp = f"{time.time_ns() // 1_000_000 & 0xFFFFFFFFFFFF:012x}"
    return f"{stamp[:8]}-{stamp[8:]}"


@lru_cache(maxsize=8)
def _counter(count: int) -> bytes:
    """So many numbers from 0 to 4095 in their order, three hexadecimal digits each."""
    return "".join(f"{place * 4096 // count:03x}" for place in range(count)).encode()


def new_token() -> str:
    """A fresh token of a claim: a random UUID, since a token must not be guessed or repeated."""
    return str(uuid.uuid4())
