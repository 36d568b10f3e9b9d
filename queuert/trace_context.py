"""The trace context of a job as it is stored: a text map, as it travels in the headers of a message.

The stores keep it as one text, JSON of an object whose values are texts: ``{"traceparent":"00-..."}``. A text that is a
bare ``traceparent``, such as producers in SQL may write, is read as well. Whatever else is found is read as nothing: it
is data of strangers, and only says where a job comes from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

MAX_BYTES: Final = 2_048
"""Of a stored context, in UTF-8. Entries that do not fit are left out, ``baggage`` first, ``traceparent`` never."""

_MOST_ENTRIES = 16
_KEY = re.compile(r"[a-z0-9_.-]{1,64}")
_VALUE = re.compile(r"[ -~]*")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[ -~]*)?")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_ORDER = ("traceparent", "sentry-trace", "tracestate")
"""What is kept first; the others follow in their order, and baggage comes last."""


def encoded_context(carrier: Mapping[str, str]) -> str | None:
    """Return the text that is stored for this map, at most ``MAX_BYTES`` long; None if nothing is left of it.

    Entries that are no header, by their names or with characters that are not printable ASCII, are left out.
    """
    text = carrier.get("traceparent", "") if len(carrier) == 1 else ""
    if len(text) == 55 and _TRACEPARENT.fullmatch(text):
        return f'{{"traceparent":"{text}"}}'
    kept: dict[str, str] = {}
    length = 2
    for name in sorted(carrier, key=_place):
        value = carrier[name]
        if not value or not _KEY.fullmatch(name) or not _VALUE.fullmatch(value):
            continue
        needed = len(json.dumps(name)) + len(json.dumps(value)) + 2
        if length + needed > MAX_BYTES:
            continue
        kept[name] = value
        length += needed
        if len(kept) == _MOST_ENTRIES:
            break
    return json.dumps(kept, separators=(",", ":")) if kept else None


def _place(name: str) -> int:
    if name in _ORDER:
        return _ORDER.index(name)
    return len(_ORDER) + (name == "baggage")


def decoded_context(text: str | None) -> Mapping[str, str]:
    """Return the map of a stored context; an empty one where there is none, or what is there is not one."""
    if text is None or len(text) > MAX_BYTES:
        return _NOTHING
    if _TRACEPARENT.fullmatch(text):
        return MappingProxyType({"traceparent": text})
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return _NOTHING
    if not isinstance(found, dict) or len(found) > _MOST_ENTRIES:
        return _NOTHING
    valid = {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and _KEY.fullmatch(name) and _VALUE.fullmatch(value)
    }
    return MappingProxyType(valid)


def trace_id_of(text: str | None) -> str | None:
    """Return the id of the trace of a stored context, 32 hexadecimal digits; None if it has none.

    >>> trace_id_of('{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}')
    '4bf92f3577b34da6a3ce929d0e0e4736'
    """
    parent = decoded_context(text).get("traceparent", "")
    return parent[3:35] if _TRACEPARENT.fullmatch(parent) else None
