"""What requests contain: bodies and queries, bounded and checked."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import ClientDisconnect, Request

from queuert._json_validation import step
from queuert.deduplication import Deduplicate
from queuert.job_types import JobType
from queuert.jobs import ChainStatus
from queuert.texts import safe_text
from queuert.web.problems import InvalidPart, Problem

M = TypeVar("M", bound=BaseModel)

_SHOWN_ERRORS = 20


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Deduplication(_Strict):
    """Start the chain only if no other chain of the same key matches; otherwise the answer is that chain."""

    key: str
    scope: Literal["open", "any"] = "open"
    window: float | None = None
    """Only chains that were started within this many seconds match."""
    debounce: float | None = None
    """Seconds from the last start of the key until the job is due."""
    max_delay: float | None = None
    """Seconds from the first start of the key until the job is due at the latest."""

    def value(self) -> Deduplicate:
        """The argument of ``start_chain``."""
        return Deduplicate(**self.model_dump())


class StartBody(_Strict):
    """A chain to start: the arguments of ``client.start_chain``."""

    type: str
    """The name of a registered job type."""
    input: Any
    """The input of the first job, valid for its job type."""
    id: str | None = None
    """An id of your own; a second start with it is refused."""
    run_at: AwareDatetime | None = None
    """When the job may first run; by default at once."""
    priority: int = 0
    blockers: list[str] = Field(default=[], max_length=1_000)
    """Ids of chains that must close before the job may run."""
    deduplication: Deduplication | None = None
    limit_key: str | None = None
    result_ttl: float | None = None
    """Seconds that the chain is kept after it closed."""
    attributes: dict[str, str | int | float | list[str | int | float]] | None = None
    max_attempts: int | None = None
    webhook: str | None = None
    """An address that is notified when the chain has closed."""


class CancelBody(_Strict):
    """Why a chain is cancelled, and what with it."""

    reason: str = "cancelled over HTTP"
    cascade: bool = False
    """Also the open chains that its jobs wait for, and no other job does."""


class RetryBody(_Strict):
    """What is retried with a chain."""

    cascade: bool = False
    """Also what failed because of it, and its failed blockers."""


class RescheduleBody(_Strict):
    """When the job that a chain waits with may run."""

    run_at: AwareDatetime


class ReprioritizeBody(_Strict):
    """The priority of the job that a chain waits with."""

    priority: int


class NoBody(_Strict):
    """Nothing."""


class CompleteBody(_Strict):
    """The output with which a chain is completed, instead of by its last job's handler."""

    output: Any
    """Valid for the job type of the chain's last job."""
    expecting: str | None = None
    """The name of the job type that the last job must have."""


class CallbackBody(_Strict):
    """What a callback says: an output, or why there is none."""

    output: Any = None
    """Valid for the job type of the chain's last job; of an address for an event, the payload of the event."""
    error: str | None = None


class WebhookBody(_Strict):
    """A webhook to make: the arguments of ``client.create_webhook``."""

    url: str
    events: list[str] | None = Field(default=None, max_length=100)
    """By default when chains close."""
    job_types: list[str] | None = Field(default=None, max_length=1_000)
    attributes: dict[str, str | int | float | list[str | int | float]] | None = None
    description: str = Field(default="", max_length=2_000)
    payloads: bool = False
    headers: dict[str, str] | None = None


class RotateBody(_Strict):
    """How long the old secret of a webhook signs beside the new one."""

    overlap: float = Field(default=86_400.0, ge=0.0, le=30 * 86_400.0)
    """Seconds."""


class DisableBody(_Strict):
    """Why a webhook is disabled."""

    reason: str = Field(default="disabled over HTTP", min_length=1, max_length=500)


class ReplayBody(_Strict):
    """What is delivered again: one delivery, or all that happened since a time."""

    delivery: str | None = None
    """The id of a delivery."""
    since: AwareDatetime | None = None
    failed_only: bool = True
    """Leave out what was accepted."""


class PageQuery(_Strict):
    """A page of a list."""

    limit: int = Field(default=50, ge=1, le=200)
    cursor: str | None = None
    """The ``next_cursor`` of the page before, with the same other parameters."""


class ChainsQuery(PageQuery):
    """Which chains to list."""

    type: list[str] = Field(default=[], max_length=100)
    status: list[ChainStatus] = []
    attribute: list[str] = Field(default=[], max_length=20)
    """``name:value``; a chain must have all of them."""
    since: AwareDatetime | None = None
    before: AwareDatetime | None = None
    order: Literal["newest", "oldest"] = "newest"

    def attribute_filter(self) -> dict[str, list[str]] | None:
        """The attributes by name.

        Raises:
            Problem: one has no colon.
        """
        found: dict[str, list[str]] = {}
        for one in self.attribute:
            name, colon, value = one.partition(":")
            if not colon:
                raise Problem(400, "invalid-query", f"attribute must be name:value, got {one[:100]!r}")
            found.setdefault(name, []).append(value)
        return found or None


class ResultQuery(_Strict):
    """How long to wait for a result."""

    wait: float = Field(default=0.0, ge=0.0, le=3_600.0)
    """Seconds to wait for the chain to close; the server shortens it."""


class ChainEventsQuery(_Strict):
    """Where the events of a chain begin."""

    after: str | None = None
    """The id of an event, or ``beginning``; the header ``Last-Event-ID`` goes before it."""
    token: str | None = None
    """A token for this chain, instead of the access of the request."""


class EventsQuery(_Strict):
    """Which events, and where they begin."""

    type: list[str] = Field(default=[], max_length=100)
    kind: list[str] = Field(default=[], max_length=100)
    after: str | None = None
    """The id of an event, or ``beginning``; by default now. The header ``Last-Event-ID`` goes before it."""


class NoQuery(_Strict):
    """No parameters."""


async def read_body(request: Request, model: type[M], max_bytes: int) -> M:
    """Return the JSON body of a request; one that is empty is ``{}``.

    Raises:
        Problem: 413 if it is too large, 415 if it is not declared as JSON, 400 if it is not JSON, 422 if it is not
            valid for the model.
    """
    data = await _bounded(request, max_bytes)
    if not data:
        return _validated(TypeAdapter(model), "{}", 422, "invalid-body", "body", strict=True)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Problem(415, "not-json", f"the Content-Type must be application/json, got {media_type[:100]!r}")
    try:
        text = checked_json(data)
    except ValueError as error:
        raise Problem(400, "invalid-json", f"the body must be JSON (RFC 8259): {error}") from None
    # A body has types: 1 is no text, and false no number, as the document says.
    return _validated(TypeAdapter(model), text, 422, "invalid-body", "body", strict=True)


def checked_json(text: str | bytes) -> str:
    """Return JSON text as Python writes it.

    Raises:
        ValueError: it is not JSON (RFC 8259), or nested too deep.
    """
    try:
        # 1e400 is read as infinity, which is not written.
        return json.dumps(json.loads(text, parse_constant=_refused_constant), allow_nan=False)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except ValueError as error:
        raise ValueError(safe_text(str(error), 200)) from None


def read_query(parameters: QueryParams, model: type[M]) -> M:
    """Return the query of a request.

    Raises:
        Problem: a parameter is not known, or not valid.
    """
    given: dict[str, Any] = {}
    for name in parameters:
        field, values = model.model_fields.get(name), parameters.getlist(name)
        if field is not None and field.default == []:
            given[name] = values
        elif len(values) > 1:
            raise Problem(400, "invalid-query", f"the parameter {name[:100]!r} must be given once")
        else:
            given[name] = values[0]
    return _validated(TypeAdapter(model), json.dumps(given), 400, "invalid-query", "query")


def read_payload(job_type: JobType[Any, Any], field: Literal["input", "output"], value: object) -> Any:
    """Return the input or output of a job type, made from JSON by its model.

    Raises:
        Problem: it is not valid for the model, or the job type has no output.
    """
    if field == "output" and not job_type.can_complete:
        raise Problem(409, "no-output", f"job type {job_type.name!r} declares no output: its jobs continue their chain")
    annotation = job_type.input_annotation if field == "input" else job_type.output_annotation
    return _validated(TypeAdapter(annotation), json.dumps(value), 422, "invalid-payload", field)


def read_event_payload(adapter: TypeAdapter[Any], value: object) -> Any:
    """Return the payload of an event as it was sent, once it is valid for the type that its handler waits for.

    Raises:
        Problem: it is not.
    """
    _validated(adapter, json.dumps(value), 422, "invalid-payload", "output")
    return value


def _validated(
    adapter: TypeAdapter[M], text: str, status: int, code: str, what: str, *, strict: bool | None = None
) -> M:
    try:
        return adapter.validate_json(text, strict=strict, by_alias=True, by_name=True)
    except ValidationError as error:
        parts = [
            InvalidPart(path=what + "".join(map(step, one["loc"])), reason=safe_text(one["msg"], 500))
            for one in error.errors(include_url=False, include_context=False, include_input=False)
        ]
        first = parts[0]
        more = f" (and {len(parts) - 1} more)" if len(parts) > 1 else ""
        detail = f"{safe_text(first.path, 500)}: {first.reason}{more}"
        raise Problem(status, code, detail, errors=parts[:_SHOWN_ERRORS]) from None


async def _bounded(request: Request, max_bytes: int) -> bytes:
    """The body, of which no more is read than allowed."""
    data = bytearray()
    declared = request.headers.get("content-length", "")
    too_large = declared.isdecimal() and int(declared) > max_bytes
    if not too_large:
        try:
            async for chunk in request.stream():
                data += chunk
                if too_large := len(data) > max_bytes:
                    break
        except ClientDisconnect:
            raise Problem(400, "disconnected", "the client has gone before its body was read") from None
    if too_large:
        raise Problem(
            413, "body-too-large", f"the body must be at most {max_bytes} bytes", headers={"Connection": "close"}
        )
    return bytes(data)


def _refused_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")
