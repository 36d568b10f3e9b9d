"""Envelopes of payloads that are not plain JSON: JSON objects that name the steps by which they were written.

The second key is the longer one, so that ``jsonb``, which sorts keys by length, shows the steps first.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from queuert.errors import CodecError

STEPS = "queuert.codec"
DATA = "queuert.payload"
MARK = f'"{STEPS}"'
MARK_BYTES = MARK.encode()
_SHOWN = 200


def written(steps: list[str], data: bytes) -> str:
    """Return the envelope as JSON text."""
    return f'{{{MARK}:{json.dumps(steps, ensure_ascii=False)},"{DATA}":"{base64.b64encode(data).decode()}"}}'


def is_envelope(value: object) -> bool:
    """Whether decoded JSON is an envelope, well formed or not."""
    return isinstance(value, dict) and STEPS in value


def found(data: str | bytes) -> dict[str, Any] | None:
    """Return the envelope in JSON text, or None. Call it only if the text contains ``MARK``."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if is_envelope(value) else None


def parts(envelope: dict[str, Any]) -> tuple[list[str], bytes]:
    """Return the steps and the data of an envelope.

    Raises:
        CodecError: the envelope is damaged.
    """
    steps, text = envelope[STEPS], envelope.get(DATA)
    if len(envelope) != 2 or not isinstance(text, str) or not isinstance(steps, list) or not steps:
        raise CodecError("the envelope is damaged")
    if not all(isinstance(step, str) for step in steps):
        raise CodecError("the envelope is damaged")
    try:
        return steps, base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CodecError("the envelope is damaged: its data is not base64") from None


def shown(found: dict[str, Any]) -> str:
    """Return the steps of an envelope for an error message, escaped, as they may have been edited by hand."""
    steps = found[STEPS]
    return shown_text(", ".join(map(str, steps)) if isinstance(steps, list) else "a damaged envelope")


def shown_text(text: str) -> str:
    """Return text of unknown origin for an error message: escaped and shortened."""
    return ascii(text)[1:-1][:_SHOWN]
