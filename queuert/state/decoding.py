"""Stored JSON, read back for showing: whatever stands there becomes a value."""

from __future__ import annotations

import json
from typing import Any

from queuert.jobs import JobError


def job_error(text: str | None) -> JobError | None:
    """A stored error; whatever stands there, since hands may have written it, becomes one."""
    if text is None:
        return None
    value = json_value(text)
    if not isinstance(value, dict):
        return JobError(kind="unknown", message=str(value))
    parts = {name: None if value.get(name) is None else str(value[name]) for name in ("type", "traceback")}
    return JobError(kind=str(value.get("kind", "unknown")), message=str(value.get("message", "")), **parts)


def json_value(text: str | None) -> Any:
    """Decoded JSON for showing; text that Python cannot decode (numbers of 5,000 digits) is handed on as text."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
