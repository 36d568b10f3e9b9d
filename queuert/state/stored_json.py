"""Decodes stored JSON for display. Text that is not valid JSON becomes a value too, so that reading never fails."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from queuert.jobs import JobError, JobProgress


def job_error(text: str | None) -> JobError | None:
    """Return a stored error; any other text, such as a manual edit, becomes an error of kind ``unknown``."""
    if text is None:
        return None
    value = json_value(text)
    if not isinstance(value, dict):
        return JobError(kind="unknown", message=str(value))
    parts = {name: None if value.get(name) is None else str(value[name]) for name in ("type", "traceback")}
    return JobError(kind=str(value.get("kind", "unknown")), message=str(value.get("message", "")), **parts)


def json_value(text: str | None) -> Any:
    """Return decoded JSON for display; text that Python cannot decode (numbers of 5,000 digits) is returned as is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def job_progress(text: str | None, attempt: int) -> JobProgress | None:
    """Return the stored progress of an attempt; None if there is none, or that of another attempt, or not valid."""
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
        # A manual edit must not make reading the job fail.
        return None
