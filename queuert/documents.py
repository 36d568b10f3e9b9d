"""Documents: how chains, jobs, events and the rest are written as JSON, on the command line, over HTTP, in streams and
webhooks. See ``docs/design/documents.md``.

The fields of a document have the names of the value's, times are UTC in ISO 8601 and durations are seconds. Payloads
and errors are left out unless they are asked for: a field that is left out is not in the JSON at all, while one that is
null has no value. ``docs/documents.schema.json`` has the JSON schema of each document.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticSerializationError, to_json, to_jsonable_python

from queuert.attributes import by_name
from queuert.bulk_operations import BulkAction
from queuert.explanations import Cause
from queuert.jobs import ChainStatus, JobStatus
from queuert.phases import PhaseStatus
from queuert.schedules import MissedRuns, Overlap
from queuert.state.records import json_value
from queuert.workers import WorkerState


class Hidden(Enum):
    """What is left out of a document unless it is asked for."""

    PAYLOADS = "payloads"
    """What applications wrote: inputs, outputs, results, messages of progress."""
    ERRORS = "errors"
    """What handlers raised, and texts that quote it. An error may quote a payload."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(schema) | {"x-shown-with": self.value}


Payload: TypeAlias = Annotated[Any, Hidden.PAYLOADS]
"""The type of a field with a payload."""


_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Shown:
    payloads: bool
    errors: bool

    def shows(self, hidden: Hidden) -> bool:
        """Whether it was asked for."""
        return self.payloads if hidden is Hidden.PAYLOADS else self.errors


class Document(BaseModel):
    """A value as it is shown: a subclass names the fields."""

    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=False)

    hidden: ClassVar[Mapping[str, Hidden]] = {}
    """The fields that are left out unless they are asked for."""

    @classmethod
    def __pydantic_init_subclass__(cls, **settings: Any) -> None:
        """Find the fields that are hidden by their types."""
        cls.hidden = {
            name: mark
            for name, field in cls.model_fields.items()
            for mark in field.metadata
            if isinstance(mark, Hidden)
        }

    @classmethod
    def of(cls, value: object, *, payloads: bool = False, errors: bool | None = None) -> Self:
        """Return the document of a value: a job, a handle of a chain, an event and so on.

        Args:
            payloads: whether payloads are shown.
            errors: whether errors are shown; as ``payloads`` if it is None.
        """
        shown = _Shown(payloads, payloads if errors is None else errors)
        return cls.model_validate(value, context=shown)

    @model_validator(mode="before")
    @classmethod
    def _fields_of(cls, value: object, info: ValidationInfo) -> object:
        """The fields of a value that are shown. One that the value does not have is left out, too."""
        shown = info.context
        if shown is None or isinstance(value, dict | Document):
            return value
        names = [name for name in cls.model_fields if name not in cls.hidden or shown.shows(cls.hidden[name])]
        found = [(name, getattr(part, name, _MISSING)) for part in cls.parts_of(value) for name in names]
        return {name: one for name, one in found if one is not _MISSING}

    @staticmethod
    def parts_of(value: Any) -> Iterable[object]:
        """The objects whose attributes are shown. A subclass may add those inside the value."""
        return (value,)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a dict, without what was left out."""
        return self.model_dump(exclude_unset=True)

    def as_json(self) -> str:
        """Return it as JSON, without what was left out."""
        return json_text(self.as_dict())


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return JSON of a document's dict, whatever payloads are in it: bytes as base64, infinite numbers as null."""
    try:
        return to_json(value, indent=indent, bytes_mode="base64", inf_nan_mode="null", serialize_unknown=True).decode()
    except PydanticSerializationError:
        # Half a surrogate pair, which JSON can write as an escape, and UTF-8 cannot.
        try:
            value = to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="null", serialize_unknown=True)
        except ValueError:
            # Nested too deep, or such a character in a key: as somebody has written it to the table by hand.
            return json.dumps(value, indent=indent, default=str)
        return json.dumps(value, indent=indent)


class ErrorDocument(Document):
    """Why an attempt did not complete a job."""

    kind: str
    message: str
    type: str | None = None
    """Class of the exception."""
    traceback: str | None = None


HiddenError: TypeAlias = Annotated[ErrorDocument | None, Hidden.ERRORS]
"""The type of a field with an error."""


class FailureDocument(Document):
    """An attempt that failed."""

    attempt: int
    started_at: datetime | None
    failed_at: datetime
    worker: str | None
    error: ErrorDocument


class PhaseProgressDocument(Document):
    """The phase that a job with phases has begun last."""

    name: str
    number: int
    """1 for the first of ``count`` phases."""
    count: int
    fraction: float
    attempt: int
    started_at: datetime


class ProgressDocument(Document):
    """What an attempt has recorded."""

    fraction: float | None
    """Of a job with phases: of all phases together; it never decreases."""
    done: float | None
    total: float | None
    at: datetime
    phase: PhaseProgressDocument | None
    """Of a job with phases."""
    message: Payload = None


class PhaseDocument(Document):
    """A phase of a job."""

    name: str
    number: int
    status: PhaseStatus
    attempt: int | None
    """The number of the attempt that began it last."""
    started_at: datetime | None
    completed_at: datetime | None
    progress: ProgressDocument | None
    """While it is not completed."""
    error: HiddenError = None
    """Why its last attempt failed."""
    result: Payload = None
    """Of a completed phase."""


class ChainDocument(Document):
    """A chain."""

    id: str
    type: str
    """Job type of its first job."""
    status: ChainStatus
    created_at: datetime
    closed_at: datetime | None
    expires_at: datetime | None
    """When it will be deleted, by its TTL."""
    stale_at: datetime | None
    """When its retention found that it is no longer kept: it will be deleted."""
    attributes: dict[str, str | list[str]]
    deduplicated: bool = False
    """Whether the start found this chain instead of starting one."""
    error: HiddenError = None
    """Why it failed or was cancelled."""


class ChainStateDocument(Document):
    """Where a chain is: its status, and its last job."""

    id: str
    type: str
    """Job type of its first job."""
    status: ChainStatus
    job_id: str
    job_type: str
    job_status: JobStatus
    attempt: int
    scheduled_at: datetime
    open_blockers: int
    progress: ProgressDocument | None
    phases: list[PhaseDocument] | None = None
    """Of a job with phases; not in streams, whose events have them."""
    last_error: HiddenError = None


class JobDocument(Document):
    """A job of a chain."""

    id: str
    type: str
    chain_id: str
    chain_index: int
    """0 for the first job of the chain."""
    status: JobStatus
    priority: int
    attempt: int
    """The number of attempts so far, with the running one."""
    uncounted: int
    """Attempts that do not count against the retry policy."""
    lease_expirations: int
    open_blockers: int
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime | None
    """When the last attempt was claimed."""
    finished_at: datetime | None
    holder: str | None
    """The worker that has the lease, or had it last."""
    lease_expires_at: datetime | None
    continued_by: str | None
    """Id of the next job of the chain."""
    deduplication_key: str | None
    limit_key: str | None
    progress: ProgressDocument | None
    max_attempts: int | None
    """The attempts that its start allows, instead of the retry policy."""
    trace_id: str | None
    """The trace in which it was created."""
    attempt_trace_id: str | None
    """The trace of the newest traced attempt."""
    overdue_at: datetime | None
    """When a job that a client completes has waited for longer than its type allows."""
    input: Payload = None
    output: Payload = None
    """Null until the job is completed."""
    last_error: HiddenError = None
    failures: Annotated[list[FailureDocument], Hidden.ERRORS] = []
    """The attempts that failed, oldest first: the first one and the newest nineteen."""


class StepDocument(Document):
    """A step of a job that an attempt has recorded."""

    number: int
    name: str
    attempt: int
    recorded_at: datetime
    wake_at: datetime | None
    """When a sleep ends, or a wait for an event times out."""
    event: str | None
    """Of a wait: the name of the event."""
    answered_at: datetime | None
    """Of a wait: when it took an event or timed out."""
    started_at: datetime | None
    """Of a phase."""
    result: Payload = None


class BlockerDocument(Document):
    """A chain that a job waits for, or waited for."""

    chain_id: str
    type: str
    """Job type of the chain's first job."""
    status: ChainStatus
    output: Payload = None
    error: HiddenError = None


class ChainTreeDocument(ChainDocument):
    """A chain with those that its jobs waited for."""

    blockers: list[ChainTreeDocument]
    waiting_job_id: str | None
    """The job of the chain above that waits for it."""
    repeated: bool
    """Whether the chain stands in the tree already, where its blockers are."""
    incomplete: bool
    """Whether it has blockers that are not in the tree."""

    @staticmethod
    def parts_of(value: Any) -> Iterable[object]:
        """Those of the chain, and where it stands in the tree."""
        return value.chain, value


class EventDocument(Document):
    """A transition of a job."""

    tx: int
    seq: int
    """Events are in the order of ``tx`` and ``seq``; those of one job happened in the order of ``seq``."""
    cursor: str
    """The place after this event, from which a list continues."""
    happened_at: datetime
    kind: str
    status: JobStatus
    """Of the job, after the event."""
    job_id: str
    chain_id: str
    chain_index: int
    type: str
    """Job type of the job."""
    chain_type: str
    """Job type of the chain's first job."""
    attempt: int
    scheduled_at: datetime | None
    started_at: datetime | None
    worker: str | None
    closes_chain: bool
    progress: ProgressDocument | None
    """Of an event of the kind ``progressed``, ``phase_started`` or ``phase_completed``."""
    error: HiddenError = None


class WorkerDocument(Document):
    """A worker, as of its last heartbeat."""

    id: str
    """The holder of the jobs that it has claimed."""
    name: str
    host: str
    pid: int
    version: str
    job_types: list[str]
    concurrency: int
    running: int
    state: WorkerState
    started_at: datetime
    seen_at: datetime


class ScheduleDocument(Document):
    """A recurring schedule."""

    name: str
    type: str
    cron: str | None
    every: float | None
    """Seconds, of a schedule without a cron expression."""
    time_zone: str
    missed: MissedRuns
    overlap: Overlap
    jitter: float
    """Seconds."""
    priority: int
    limit_key: str | None
    attributes: dict[str, str | list[str]]
    result_ttl: float | None
    """Seconds that its chains are kept after they closed."""
    paused: bool
    starts_at: datetime | None
    ends_at: datetime | None
    next_at: datetime | None
    """The next tick."""
    last_at: datetime | None
    """The latest tick that started a chain."""
    last_chain_id: str | None
    owner: str | None
    input: Payload = None

    @field_validator("input", mode="before")
    @classmethod
    def _decoded(cls, value: str) -> Any:
        return json_value(value)


class JobTypeDocument(Document):
    """A registered job type."""

    name: str
    input: dict[str, JsonValue]
    """The JSON schema of the input."""
    output: dict[str, JsonValue] | None
    """The JSON schema of the output; null if it declares none."""
    continues_with: list[str]
    completed_by: Literal["worker", "client"]
    overdue_after: float | None
    """Seconds after which a job that waits for a client is overdue; null: never."""


class PausedTypeDocument(Document):
    """A job type whose jobs are not claimed."""

    type: str
    paused_at: datetime
    reason: str | None
    by: str | None
    """Who paused it, as given."""


class ReasonDocument(Document):
    """What holds a job."""

    cause: Cause
    until: datetime | None
    """When it ends, if that is known."""
    text: Annotated[str | None, Hidden.ERRORS] = None
    """A sentence, which may quote an error."""


class ExplanationDocument(Document):
    """Why a chain is not closed yet."""

    chain_id: str
    chain_type: str
    chain_status: ChainStatus
    job_id: str
    """Of its last job."""
    job_type: str
    job_status: JobStatus
    reasons: list[ReasonDocument]
    blockers: list[ExplanationDocument]
    """The open chains that the job waits for, with the one that goes first in the order of its key."""
    more_blockers: int
    """How many more there are that are not explained."""


class RunAtDocument(Document):
    """When the jobs of a rescheduling may run: at a moment, or after a delay."""

    moment: datetime | None
    delay: float | None
    """Seconds."""


class BulkOperationDocument(Document):
    """A bulk operation."""

    id: str
    action: BulkAction
    requested_by: str
    job_types: list[str] | None
    statuses: list[ChainStatus]
    attributes: dict[str, str | list[str]]
    since: datetime | None
    before: datetime | None
    error_summary: str | None
    reason: str | None
    run_at: RunAtDocument | None
    priority: int | None
    status: ChainStatus
    seen: int
    changed: int
    skipped: int
    created_at: datetime
    closed_at: datetime | None
    error: HiddenError = None


class WebhookDocument(Document):
    """A webhook, without its secrets and the values of its headers."""

    id: str
    url: str
    events: list[str]
    job_types: list[str] | None
    attributes: dict[str, str | list[str]]
    description: str
    payloads: bool
    headers: list[str]
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    secret_ends: list[str]
    """The last four characters of each secret that signs."""
    failures: int
    """Failures in a row."""
    failing_since: datetime | None
    circuit: str
    """``closed``, or ``open`` while deliveries wait."""

    @field_validator("attributes", mode="before")
    @classmethod
    def _attributes_by_name(cls, value: Any) -> Any:
        """As those of chains and of bulk operations; the filter has pairs."""
        return value if isinstance(value, dict) else by_name(value)

    @staticmethod
    def parts_of(value: Any) -> Iterable[object]:
        """Those of the webhook and of its filter."""
        return value, value.filter


class NewWebhookDocument(WebhookDocument):
    """A webhook with its new secret, which is not shown again."""

    secret: str

    @staticmethod
    def parts_of(value: Any) -> Iterable[object]:
        """Those of the webhook and of its filter, and the secret."""
        return value.webhook, value.webhook.filter, value


class WebhookAttemptDocument(Document):
    """An attempt at a delivery."""

    delivery_id: str
    event_type: str
    attempt: int
    at: datetime
    status: int | None
    error: str | None
    """What kind of failure it was; null if it was accepted."""
    seconds: float
    retry_in: float | None
    response: Annotated[str | None, Hidden.PAYLOADS] = None
    """What the receiver answered."""
