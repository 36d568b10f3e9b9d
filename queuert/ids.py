"""Ids: UUIDs of version 7 (RFC 9562), so that neighbours in time are neighbours in the index."""

from __future__ import annotations

import os
import time
import uuid


def new_id() -> str:
    """A fresh id: milliseconds since 1970 and 74 random bits, in the usual 36 characters."""
    noise = int.from_bytes(os.urandom(10), "big")
    milliseconds = time.time_ns() // 1_000_000 & 0xFFFFFFFFFFFF
    text = f"{milliseconds:012x}7{noise >> 62 & 0xFFF:03x}{noise & (1 << 62) - 1 | 1 << 63:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def new_token() -> str:
    """A fresh token of a claim: a random UUID, since a token must not be guessed or repeated."""
    return str(uuid.uuid4())
