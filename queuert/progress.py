"""How far an attempt is, as its handler tells: checked, as the text that stores keep, and shown.

The numbers are stored in the clear; the message is stored as the payloads of the job's type are, sealed where they are.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from queuert._json_validation import text_reason
from queuert.codecs.payloads import payload_codec
from queuert.errors import ConfigurationError
from queuert.job_types import JobType
from queuert.jobs import JobProgress
from queuert.payloads import PayloadCodec, PayloadLimits

MAX_MESSAGE = 1_000
"""Characters of a message."""

_LIMITS = PayloadLimits(max_bytes=16 * 1024)


def checked_progress(
    done: float | None, total: float | None, fraction: float | None, message: str | None
) -> JobProgress:
    """What a handler tells, if it makes sense. Without a fraction, it is ``done / total``.

    Raises:
        ConfigurationError: a number is negative or no number, the fraction above 1, or the message too long, or none
            that can be stored; or nothing is told at all.
    """
    for name, value, most in (("done", done, math.inf), ("total", total, math.inf), ("fraction", fraction, 1)):
        if value is not None and not (0 <= value <= most and math.isfinite(value)):
            raise ConfigurationError(f"progress: {name} is {value!r}; give a number from 0 on, a fraction up to 1")
    if done is None and fraction is None and message is None:
        raise ConfigurationError("progress: give done, fraction or message")
    if message is not None:
        reason = text_reason(message)
        if len(message) > MAX_MESSAGE or reason is not None:
            raise ConfigurationError(f"progress: {reason or f'the message is longer than {MAX_MESSAGE:,} characters'}")
    if fraction is None and done is not None and total:
        fraction = min(done / total, 1.0)
    return JobProgress(fraction, done, total, message, datetime.now(UTC))


def stored_progress(job_type: JobType[Any, Any], attempt: int, progress: JobProgress) -> str:
    """The progress of an attempt as the JSON text that a store keeps.

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
    }
    return json.dumps({name: value for name, value in values.items() if value is not None}, ensure_ascii=False)


def shown_progress(job_type: JobType[Any, Any], progress: JobProgress) -> JobProgress:
    """The progress with its message as it was told, as far as the job type's format can read it."""
    if progress.message is None or isinstance(progress.message, str):
        return progress
    return replace(progress, message=_codec(job_type).shown(progress.message))


@lru_cache(maxsize=256)
def _codec(job_type: JobType[Any, Any]) -> PayloadCodec:
    return payload_codec(str, job_type=job_type.name, field="progress", limits=_LIMITS, format=job_type.format)
