"""Ids: UUIDs of version 7 (RFC 9562), so that neighbours in time are neighbours in the index."""

from __future__ import annotations

import os
import time
import uuid

_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))
"""The digit that says of what kind the UUID is, and has two random bits."""


def new_id() -> str:
    """A fresh id: milliseconds since 1970 and 74 random bits, in the usual 36 characters."""
    noise = os.urandom(10).hex()
    stamp = f"{time.time_ns() // 1_000_000 & 0xFFFFFFFFFFFF:012x}"
    return f"{stamp[:8]}-{stamp[8:]}-7{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[7:19]}"


def new_token() -> str:
    """A fresh token of a claim: a random UUID, since a token must not be guessed or repeated."""
    return str(uuid.uuid4())
