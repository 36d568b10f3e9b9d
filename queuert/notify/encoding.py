"""Encodes the keys of notifications as texts, and decodes texts, which anybody may have sent.

A text is one key as it is, or a mark followed by a JSON list of keys, or the mark alone, the wildcard: anything may
have happened. Keys that the first form cannot carry (they are empty, begin with the mark, or are not plain ASCII) use
the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Set

MARK = "\x01"
"""The beginning of a text that is not simply a key. No usual name begins so: a sender of plain keys can ignore it."""

WILDCARD = MARK
"""The text that stands for all keys."""

MAX_BYTES = 7_500
"""The longest text that is sent; Postgres accepts 7,999 bytes."""

MAX_TEXTS = 64
"""The most texts for the keys of one topic; for more keys, a wildcard costs less."""


def encode(keys: Set[str] | None) -> list[str]:
    """Return the texts that carry these keys; a single wildcard for None, and for too many or too long keys."""
    if keys is None:
        return [WILDCARD]
    if len(keys) == 1 and _is_plain(key := next(iter(keys))):
        return [key]
    texts: list[str] = []
    for text in _pack(_quoted(keys)):
        if len(text) > MAX_BYTES or len(texts) == MAX_TEXTS:
            return [WILDCARD]
        texts.append(text)
    return texts


def decode(text: str) -> frozenset[str] | None:
    """Return the keys that a text names; None for a wildcard, and for a text that is not in this format.

    A bare ``NOTIFY channel``, as an operator may type it, is a wildcard too.
    """
    if not text.startswith(MARK):
        return frozenset({text}) if text else None
    try:
        keys = json.loads(text[len(MARK) :])
    except (ValueError, RecursionError):
        return None
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        return None
    return frozenset(keys)


def _is_plain(key: str) -> bool:
    # Other characters arrive only if the encoding of the database has them; JSON escapes them.
    return key.isascii() and 0 < len(key) <= MAX_BYTES and "\0" not in key and not key.startswith(MARK)


def _quoted(keys: Set[str]) -> list[str]:
    """Return the keys as JSON, sorted. One check of all keys, joined, finds whether they need escaping; ids do not."""
    ordered = sorted(keys)
    joined = "".join(ordered)
    if joined.isascii() and joined.isprintable() and '"' not in joined and "\\" not in joined:
        return [f'"{key}"' for key in ordered]
    return [json.dumps(key) for key in ordered]


def _pack(quoted: Iterable[str]) -> Iterator[str]:
    parts: list[str] = []
    size = 0
    for part in quoted:
        if parts and size + len(part) > MAX_BYTES - len(MARK) - 2:
            yield f"{MARK}[{','.join(parts)}]"
            parts, size = [], 0
        parts.append(part)
        size += len(part) + 1
    if parts:
        yield f"{MARK}[{','.join(parts)}]"
