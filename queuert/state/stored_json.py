"""Stored JSON, read back for showing: whatever stands there becomes a value."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from queuert.jobs import JobError, JobProgress


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


def job_progress(text: str | None, attempt: int) -> JobProgress | None:
    """What a store keeps of an attempt; None if there is nothing, of another attempt, or nothing that can be read."""
    if text is None:
        return None
    try:
        found = json.loads(text)
        if found["attempt"] != attempt:
            return None
        fraction, done, total = (
            None if found.get(name) is None else float(found[name]) for name in ("fraction", "done", "total")
        )
        return JobProgress(fraction, done, total, found.get("message"), datetime.fromisoformat(found["at"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        # Hands may have written there, and a look at a job is not to fail for it.
        return None
