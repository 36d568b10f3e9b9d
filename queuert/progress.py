"""Progress that a handler records: checked, encoded for the store, and decoded for display.

The numbers are stored in the clear; the message is stored in the format of the job type, encrypted if that encrypts.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from queuert.codecs.payloads import payload_codec
from queuert.errors import ConfigurationError
from queuert.job_types import JobType
from queuert.jobs import JobProgress, PhaseProgress
from queuert.payloads import PayloadCodec, PayloadLimits
from queuert.texts import text_reason

MAX_MESSAGE = 1_000
"""The most characters of a message."""

_LIMITS = PayloadLimits(max_bytes=16 * 1024)


def checked_progress(
    done: float | None, total: float | None, fraction: float | None, message: str | None
) -> JobProgress:
    """Return the progress that a handler records. ``fraction`` defaults to ``done / total``.

    Raises:
        ConfigurationError: a number is negative or not finite, the fraction is above 1, the message is too long or
            cannot be stored, or all of them are missing.
    """
    for name, value, most in (("done", done, math.inf), ("total", total, math.inf), ("fraction", fraction, 1)):
        if value is not None and not (0 <= value <= most and _is_finite(value)):
            bounds = "between 0 and 1" if name == "fraction" else "a finite number of at least 0"
            raise ConfigurationError(f"{name} of progress must be {bounds}, got {_shown(value)}")
    if done is None and fraction is None and message is None:
        raise ConfigurationError("progress needs at least one of done, fraction and message")
    if message is not None:
        reason = text_reason(message)
        if reason is not None:
            raise ConfigurationError(f"message of progress must not contain {reason}")
        if len(message) > MAX_MESSAGE:
            raise ConfigurationError(
                f"message of progress must have at most {MAX_MESSAGE:,} characters, got {len(message):,}"
            )
    if fraction is None and done is not None and total:
        fraction = min(done / total, 1.0)
    return JobProgress(fraction, done, total, message, datetime.now(UTC))


def _shown(value: float) -> str:
    try:
        float(value)
    except OverflowError:  # Python writes no integers of more than some thousand digits.
        return "an integer of over 300 digits"
    return repr(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # An integer that no float can be.
        return False


def stored_progress(job_type: JobType[Any, Any], attempt: int, progress: JobProgress) -> str:
    """Return the progress of an attempt as the JSON text that a store keeps.

    Raises:
        PayloadError: the format of the job type cannot write the message.
    """
    message = None if progress.message is None else json.loads(_codec(job_type).encode(progress.message))
    values = {
        "attempt": attempt,
        "at": progress.at.isoformat(),
        "fraction": progress.fraction,
        "done": progress.done,
        "total": progress.total,
        "message": message,
        "phase": None if progress.phase is None else _stored_phase(progress.phase),
    }
    return json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)


def _stored_phase(phase: PhaseProgress) -> dict[str, Any]:
    values = {"name": phase.name, "number": phase.number, "count": phase.count, "fraction": phase.fraction}
    return {**values, "started_at": phase.started_at.isoformat()}


def shown_progress(job_type: JobType[Any, Any], progress: JobProgress) -> JobProgress:
    """Return the progress with its message decoded, if the format of the job type can read it."""
    if progress.message is None or isinstance(progress.message, str):
        return progress
    return replace(progress, message=_codec(job_type).shown(progress.message))


@lru_cache(maxsize=256)
def _codec(job_type: JobType[Any, Any]) -> PayloadCodec:
    return payload_codec(str, job_type=job_type.name, field="progress", limits=_LIMITS, format=job_type.format)
