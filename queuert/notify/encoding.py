"""Notifications as the text of notifications: encoded compactly, packed tightly, and read back from anybody without
harm.

A text is one key as it is, or a mark followed by a JSON list of keys, or the mark alone: *anything may have happened*.
Keys that the first form cannot carry (they are empty, begin with the mark, or are not plain ASCII) take the second.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Set

MARK = "\x01"
"""How a text begins that is not simply a key. No sensible name does, so that plain senders need not know of it."""

WILDCARD = MARK
"""The text that says: look at everything."""

MAX_BYTES = 7_500
"""Of a text that we send; Postgres takes up to 7,999."""

MAX_TEXTS = 64
"""For one topic at a time; beyond, a wildcard is cheaper for everybody."""


def encode(keys: Set[str] | None) -> list[str]:
    """The texts that carry these keys, or a single wildcard where there are none to name, or too many or too long."""
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
    """The keys that a text names; None for a wildcard, and for anything that only pretends to be ours.

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
    # Beyond ASCII it depends on the database's encoding whether a text arrives; JSON escapes all that.
    return key.isascii() and 0 < len(key) <= MAX_BYTES and "\0" not in key and not key.startswith(MARK)


def _quoted(keys: Set[str]) -> list[str]:
    """The keys as JSON, in their order. Ids need no escaping, and many of them are looked at as one text."""
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
