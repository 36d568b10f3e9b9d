"""What stands in the store where a payload is not plain JSON: a JSON object that names the steps to read it by.

The longer key is the second one, so that ``jsonb``, which sorts keys by length, shows the steps first.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from queuert.codecs.base import CodecError

STEPS = "queuert.codec"
DATA = "queuert.payload"
MARK = f'"{STEPS}"'
MARK_BYTES = MARK.encode()
_SHOWN = 200


def written(steps: list[str], data: bytes) -> str:
    """The envelope as JSON text."""
    return f'{{{MARK}:{json.dumps(steps, ensure_ascii=False)},"{DATA}":"{base64.b64encode(data).decode()}"}}'


def is_envelope(value: object) -> bool:
    """Whether decoded JSON is an envelope, well formed or not."""
    return isinstance(value, dict) and STEPS in value


def found(data: str | bytes) -> dict[str, Any] | None:
    """The envelope that JSON text is, if it is one. Worth asking only if ``MARK`` is in it."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if is_envelope(value) else None


def parts(envelope: dict[str, Any]) -> tuple[list[str], bytes]:
    """The steps and the data of an envelope.

    Raises:
        CodecError: it is none of ours.
    """
    steps, text = envelope[STEPS], envelope.get(DATA)
    if len(envelope) != 2 or not isinstance(text, str) or not isinstance(steps, list) or not steps:
        raise CodecError("a damaged envelope")
    if not all(isinstance(step, str) for step in steps):
        raise CodecError("a damaged envelope")
    try:
        return steps, base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CodecError("a damaged envelope: its data is not base64") from None


def shown(found: dict[str, Any]) -> str:
    """The steps of an envelope for an error; hands may have written them."""
    steps = found[STEPS]
    return shown_text(", ".join(map(str, steps)) if isinstance(steps, list) else "a damaged envelope")


def shown_text(text: str) -> str:
    """Text that hands may have written, fit for an error."""
    return ascii(text)[1:-1][:_SHOWN]
