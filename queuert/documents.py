"""Chains, jobs and job types as the interface shows them. Fields that a request may not see are left out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from queuert.client import AsyncChain
from queuert.event_log import JobEvent
from queuert.jobs import ChainState, ChainStatus, Job, JobError, JobFailure, JobProgress, JobStatus
from queuert.phases import JobPhase, PhaseStatus
from queuert.state.webhooks import WebhookAttempt
from queuert.webhooks.endpoints import NewWebhook, Webhook


class _Resource(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, json_schema_serialization_defaults_required=False)


class ErrorResource(_Resource):
    """Why an attempt did not complete a job."""

    kind: str
    message: str
    type: str | None = None
    traceback: str | None = None

    @classmethod
    def of(cls, error: JobError | None) -> ErrorResource | None:
        """The error, or None."""
        return None if error is None else cls.model_validate(error, from_attributes=True)


class FailureResource(_Resource):
    """An attempt that failed."""

    attempt: int
    started_at: datetime | None
    failed_at: datetime
    worker: str | None
    error: ErrorResource

    @classmethod
    def of(cls, failure: JobFailure) -> FailureResource:
        """The failure."""
        return cls.model_validate(failure, from_attributes=True)


class PhaseProgressResource(_Resource):
    """The phase that a job with phases has begun last."""

    name: str
    number: int
    """1 for the first of ``count`` phases."""
    count: int
    fraction: float
    attempt: int
    started_at: datetime


class ProgressResource(_Resource):
    """What an attempt has recorded."""

    fraction: float | None
    """Of a job with phases: of all phases together; it never decreases."""
    done: float | None
    total: float | None
    at: datetime
    phase: PhaseProgressResource | None = None
    """Of a job with phases."""
    message: Any = None
    """With ``read_payloads``."""

    @classmethod
    def of(cls, progress: JobProgress | None, payloads: bool) -> ProgressResource | None:
        """The progress, or None."""
        if progress is None:
            return None
        found = cls(fraction=progress.fraction, done=progress.done, total=progress.total, at=progress.at)
        if progress.phase is not None:
            found.phase = PhaseProgressResource.model_validate(progress.phase, from_attributes=True)
        if payloads:
            found.message = progress.message
        return found


class PhaseResource(_Resource):
    """A phase of a job."""

    name: str
    number: int
    status: PhaseStatus
    attempt: int | None
    """The number of the attempt that began it last."""
    started_at: datetime | None
    completed_at: datetime | None
    fraction: float | None = None
    """How much of it is done, while it is not completed."""
    error: ErrorResource | None = None
    """Why its last attempt failed; with ``read_payloads``."""
    result: Any = None
    """Of a completed phase; with ``read_payloads``."""

    @classmethod
    def of(cls, phase: JobPhase, payloads: bool) -> PhaseResource:
        """The phase."""
        found = cls(
            name=phase.name,
            number=phase.number,
            status=phase.status,
            attempt=phase.attempt,
            started_at=phase.started_at,
            completed_at=phase.completed_at,
        )
        if phase.progress is not None and phase.progress.phase is not None:
            found.fraction = phase.progress.phase.fraction
        if payloads:
            found.error, found.result = ErrorResource.of(phase.error), phase.result
        return found


class LinksResource(_Resource):
    """Paths on this server."""

    chain: str
    jobs: str
    progress: str
    result: str
    events: str


class ChainResource(_Resource):
    """A chain."""

    id: str
    type: str
    """Job type of its first job."""
    status: ChainStatus
    created_at: datetime
    closed_at: datetime | None = None
    expires_at: datetime | None = None
    stale_at: datetime | None = None
    """When its retention found that it is no longer kept: it will be deleted."""
    attributes: dict[str, str | list[str]] = {}
    error: ErrorResource | None = None
    """Why it failed or was cancelled; with ``read_payloads``."""
    deduplicated: bool = False
    """Whether the start found this chain instead of starting one."""
    links: LinksResource

    @classmethod
    def of(cls, chain: AsyncChain[Any], base: str, *, payloads: bool) -> ChainResource:
        """The chain, of which all was read, unless this start has made it."""
        found = cls(
            id=chain.id,
            type=chain.type,
            status=chain.status,
            created_at=chain.created_at,
            closed_at=chain.closed_at,
            expires_at=chain.expires_at,
            stale_at=chain.stale_at,
            attributes={
                name: value if isinstance(value, str) else list(value) for name, value in chain.attributes.items()
            },
            deduplicated=chain.deduplicated,
            links=links_of(base, chain.id),
        )
        if payloads:
            found.error = ErrorResource.of(chain.error)
        return found


class ProgressOfChain(_Resource):
    """Where a chain is: its status, and its last job."""

    id: str
    type: str
    status: ChainStatus
    job_id: str
    job_type: str
    job_status: JobStatus
    attempt: int
    scheduled_at: datetime
    open_blockers: int
    progress: ProgressResource | None
    phases: list[PhaseResource] | None = None
    """Of a job with phases; not in streams, whose events have them."""
    last_error: ErrorResource | None = None
    """With ``read_payloads``."""

    @classmethod
    def of(cls, state: ChainState, *, payloads: bool, phases: Sequence[JobPhase] = ()) -> ProgressOfChain:
        """The state."""
        found = cls(
            id=state.id,
            type=state.type,
            status=state.status,
            job_id=state.job_id,
            job_type=state.job_type,
            job_status=state.job_status,
            attempt=state.attempt,
            scheduled_at=state.scheduled_at,
            open_blockers=state.open_blockers,
            progress=ProgressResource.of(state.progress, payloads),
        )
        if phases:
            found.phases = [PhaseResource.of(phase, payloads) for phase in phases]
        if payloads:
            found.last_error = ErrorResource.of(state.last_error)
        return found


class JobResource(_Resource):
    """A job of a chain."""

    id: str
    type: str
    chain_id: str
    chain_index: int
    status: JobStatus
    priority: int
    attempt: int
    open_blockers: int
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    holder: str | None
    lease_expires_at: datetime | None
    continued_by: str | None
    progress: ProgressResource | None
    input: Any = None
    """With ``read_payloads``."""
    output: Any = None
    """With ``read_payloads``; null until the job is completed."""
    last_error: ErrorResource | None = None
    """With ``read_payloads``."""
    failures: list[FailureResource] = []
    """With ``read_payloads``."""

    @classmethod
    def of(cls, job: Job, *, payloads: bool) -> JobResource:
        """The job."""
        found = cls(
            id=job.id,
            type=job.type,
            chain_id=job.chain_id,
            chain_index=job.chain_index,
            status=job.status,
            priority=job.priority,
            attempt=job.attempt,
            open_blockers=job.open_blockers,
            created_at=job.created_at,
            scheduled_at=job.scheduled_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            holder=job.holder,
            lease_expires_at=job.lease_expires_at,
            continued_by=job.continued_by,
            progress=ProgressResource.of(job.progress, payloads),
        )
        if payloads:
            found.input, found.output = job.input, job.output
            found.last_error = ErrorResource.of(job.last_error)
            found.failures = [FailureResource.of(failure) for failure in job.failures]
        return found


class EventResource(_Resource):
    """A transition of a job."""

    tx: int
    seq: int
    """Events are in the order of ``tx`` and ``seq``; those of one job happened in the order of ``seq``."""
    happened_at: datetime
    kind: str
    status: JobStatus
    """Of the job, after the event."""
    job_id: str
    chain_id: str
    chain_index: int
    type: str
    chain_type: str
    attempt: int
    scheduled_at: datetime | None
    started_at: datetime | None
    worker: str | None
    closes_chain: bool
    progress: ProgressResource | None = None
    """Of an event of the kind ``progressed``, ``phase_started`` or ``phase_completed``."""
    error: ErrorResource | None = None
    """With ``read_payloads``."""

    @classmethod
    def of(cls, event: JobEvent, *, payloads: bool) -> EventResource:
        """The event."""
        found = cls(
            tx=event.tx,
            seq=event.seq,
            happened_at=event.happened_at,
            kind=event.kind,
            status=event.status,
            job_id=event.job_id,
            chain_id=event.chain_id,
            chain_index=event.chain_index,
            type=event.type,
            chain_type=event.chain_type,
            attempt=event.attempt,
            scheduled_at=event.scheduled_at,
            started_at=event.started_at,
            worker=event.worker,
            closes_chain=event.closes_chain,
        )
        if event.progress is not None:
            found.progress = ProgressResource.of(event.progress, payloads)
        if payloads:
            found.error = ErrorResource.of(event.error)
        return found


class GapResource(_Resource):
    """Events that the client has not got are lost, or got other numbers."""

    reason: str


class ChainsPage(_Resource):
    """A page of chains."""

    items: list[ChainResource]
    next_cursor: str | None


class JobsPage(_Resource):
    """A page of jobs."""

    items: list[JobResource]
    next_cursor: str | None


class ResultResource(_Resource):
    """The output of a completed chain."""

    id: str
    output: Any


class OpenChainResource(_Resource):
    """A chain that has no result yet: ask again."""

    id: str
    status: ChainStatus


class JobTypeResource(_Resource):
    """A job type of which chains can be started."""

    name: str
    input: dict[str, JsonValue]
    """The JSON schema of the input."""
    output: dict[str, JsonValue] | None
    """The JSON schema of the output; null if it declares none."""
    continues_with: list[str]
    completed_by: Literal["worker", "client"]
    overdue_after: float | None
    """Seconds after which a job that waits for a client is overdue; null: never."""


class JobTypesResource(_Resource):
    """The registered job types."""

    items: list[JobTypeResource]


class IndexResource(_Resource):
    """Where to begin."""

    chains: str
    events: str
    job_types: str
    openapi: str


def links_of(base: str, chain_id: str) -> LinksResource:
    """The paths of a chain below the path of the application."""
    chain = f"{base}/chains/{path_segment(chain_id)}"
    parts = ("jobs", "progress", "result", "events")
    return LinksResource(chain=chain, **{part: f"{chain}/{part}" for part in parts})


def path_segment(id: str) -> str:
    """The id as one segment of a path. Browsers and proxies would resolve bare dots."""
    return quote(id, safe="") if id.strip(".") else id.replace(".", "%2E")


def schema_of(annotation: Any) -> dict[str, Any]:
    """The JSON schema of an input or output; one that allows everything if pydantic has none for it."""
    try:
        return TypeAdapter(annotation).json_schema()
    except PydanticInvalidForJsonSchema:
        return {}


class WebhookResource(_Resource):
    """A webhook, without its secrets and the values of its headers."""

    id: str
    url: str
    events: list[str]
    job_types: list[str] | None
    attributes: list[list[str]]
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

    @classmethod
    def of(cls, webhook: Webhook) -> WebhookResource:
        """The webhook."""
        return cls(**cls.fields_of(webhook))

    @staticmethod
    def fields_of(webhook: Webhook) -> dict[str, Any]:
        """What is shown of a webhook."""
        filter = webhook.filter
        names = ("id", "url", "description", "payloads", "enabled", "disabled_reason", "created_at", "failures")
        return {
            **{name: getattr(webhook, name) for name in (*names, "failing_since", "circuit")},
            "events": list(filter.events),
            "job_types": None if filter.job_types is None else list(filter.job_types),
            "attributes": [list(pair) for pair in filter.attributes],
            "headers": list(webhook.headers),
            "secret_ends": list(webhook.secret_ends),
        }


class NewWebhookResource(WebhookResource):
    """A webhook with its new secret, which is not shown again."""

    secret: str

    @classmethod
    def made(cls, made: NewWebhook) -> NewWebhookResource:
        """The webhook and its secret."""
        return cls(**cls.fields_of(made.webhook), secret=made.secret)


class WebhooksResource(_Resource):
    """All webhooks."""

    items: list[WebhookResource]


class WebhookAttemptResource(_Resource):
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
    response: str | None = None

    @classmethod
    def of(cls, attempt: WebhookAttempt, *, payloads: bool) -> WebhookAttemptResource:
        """The attempt; its answer is shown with payloads only."""
        left_out = frozenset() if payloads else frozenset({"response"})
        return cls(**{name: getattr(attempt, name) for name in cls.model_fields if name not in left_out})


class WebhookAttemptsPage(_Resource):
    """Attempts at deliveries, the newest first."""

    items: list[WebhookAttemptResource]
    next_cursor: str | None


class ReplayResource(_Resource):
    """How many deliveries are made again."""

    replayed: int


class PingResource(_Resource):
    """The id of the delivery of a ping."""

    delivery: str


class DeletedResource(_Resource):
    """What was deleted."""

    deleted: str
