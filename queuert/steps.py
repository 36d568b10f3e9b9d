"""Results of steps: the codec that encodes them for the store, and how they are shown.

They are stored in the format of the job type, and have the limits of its payloads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from queuert.codecs.payloads import payload_codec
from queuert.job_types import JobType
from queuert.jobs import JobStep
from queuert.payloads import PayloadCodec
from queuert.state.records import json_value
from queuert.state.steps import StepRecord

if TYPE_CHECKING:
    from typing_extensions import TypeForm


def step_codec(job_type: JobType[Any, Any], annotation: TypeForm[Any]) -> PayloadCodec:
    """Return the codec for results of this type, and for payloads of events.

    Raises:
        DefinitionError: pydantic has no schema for the type.
    """
    try:
        return _cached_codec(job_type, annotation)  # type: ignore[arg-type]
    except TypeError:  # An annotation that has no hash.
        return _codec(job_type, annotation)


@lru_cache(maxsize=1024)
def event_codec(job_type: JobType[Any, Any]) -> PayloadCodec:
    """Return the codec that writes payloads of events. The handler that waits for one says of which type it is."""
    return _codec(job_type, Any, read_as_same=False)


def shown_steps(job_type: JobType[Any, Any] | None, records: Sequence[StepRecord]) -> list[JobStep]:
    """Return steps with their results decoded, as far as the format of the job type can read them."""
    codec = None if job_type is None else step_codec(job_type, Any)
    return [_shown(codec, record) for record in records]


def _shown(codec: PayloadCodec | None, record: StepRecord) -> JobStep:
    result = json_value(record.result)
    return JobStep(
        record.number,
        record.name,
        record.attempt,
        record.recorded_at,
        result if codec is None else codec.shown(result),
        record.wake_at,
        record.event,
        record.answered_at,
        record.started_at,
    )


def _codec(job_type: JobType[Any, Any], annotation: Any, *, read_as_same: bool = True) -> PayloadCodec:
    return payload_codec(
        annotation,
        job_type=job_type.name,
        field="step",
        limits=job_type.limits,
        format=job_type.format,
        read_as_same=read_as_same,
    )


_cached_codec = lru_cache(maxsize=1024)(_codec)
