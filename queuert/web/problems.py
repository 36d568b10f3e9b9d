"""Errors as ``application/problem+json`` (RFC 9457): the kind of an error says its status."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from queuert.callbacks import InvalidCallbackError
from queuert.errors import (
    BlockerMismatchError,
    CapabilityMissingError,
    ChainAlreadyClosedError,
    ChainCancelledError,
    ChainNotFoundError,
    ChainNotRetriableError,
    ConfigurationError,
    ErrorKind,
    EventLimitError,
    InvalidCursorError,
    InvalidIdentifierError,
    JobFailedError,
    JobIdConflictError,
    JobNotFoundError,
    JobTypeMismatchError,
    NotInStatusError,
    PayloadDecodeError,
    PayloadError,
    QueuertError,
    RightMissingError,
    ScheduleNotFoundError,
    SchemaMissingError,
    StateUnavailableError,
    UnknownJobTypeError,
    UnsuitableServerError,
    WaitTimeoutError,
)
from queuert.webhooks.errors import WebhookNotFoundError, WebhookVerificationError

_log = logging.getLogger("queuert.web")

MEDIA_TYPE = "application/problem+json"

_CODES: tuple[tuple[type[QueuertError], str], ...] = (
    (ChainNotFoundError, "chain-not-found"),
    (WebhookNotFoundError, "webhook-not-found"),
    (JobNotFoundError, "job-not-found"),
    (ScheduleNotFoundError, "schedule-not-found"),
    (ChainAlreadyClosedError, "chain-already-closed"),
    (ChainNotRetriableError, "chain-not-retriable"),
    (NotInStatusError, "not-in-status"),
    (JobIdConflictError, "id-exists"),
    (JobTypeMismatchError, "other-job-type"),
    (EventLimitError, "too-many-events"),
    (InvalidCursorError, "invalid-cursor"),
    (PayloadDecodeError, "unreadable-payload"),
    (PayloadError, "invalid-payload"),
    (UnknownJobTypeError, "unknown-job-type"),
    (InvalidIdentifierError, "invalid-identifier"),
    (BlockerMismatchError, "other-blockers"),
    (WebhookVerificationError, "webhook-not-authentic"),
    (InvalidCallbackError, "invalid-callback"),
    (ConfigurationError, "invalid-argument"),
    (CapabilityMissingError, "not-supported-by-the-store"),
    (StateUnavailableError, "store-unavailable"),
    (SchemaMissingError, "store-unavailable"),
    (UnsuitableServerError, "store-unavailable"),
    (RightMissingError, "forbidden-by-the-store"),
    (JobFailedError, "chain-failed"),
    (ChainCancelledError, "chain-cancelled"),
    (WaitTimeoutError, "still-open"),
)
"""The code of each error whose text may be shown; the first class that fits counts. The last three are those of
``result()`` in routes of an application: a wait of the interface itself that ends is no error."""

_STATUSES = {
    ErrorKind.USAGE: 422,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.CONFLICT: 409,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.UNSUPPORTED: 501,
    ErrorKind.TIMEOUT: 504,
    ErrorKind.FAILED: 500,
}

_STATUS_OF: dict[type[QueuertError], int] = {
    InvalidCursorError: 400,
    WebhookVerificationError: 401,
    InvalidCallbackError: 403,
}
"""The errors whose kind has another status over HTTP: a cursor is part of a query, and what is malformed there is 400;
what is not authentic is refused."""

_UNAVAILABLE = "the store cannot be reached, or has no tables: repeat the request later"
_FORBIDDEN = "this server has no right to do this: see its log"
_FAILED = "the request failed: see the log of the server"


class InvalidPart(BaseModel):
    """What is wrong with a part of a request."""

    path: str = Field(description="Where: a parameter, or a path in the body such as input.lines[3].")
    reason: str


class ProblemBody(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="urn:queuert:problem: and a code, by which programs tell errors apart.")
    title: str
    status: int
    detail: str = Field(description="What must be, what was given, and what to do.")
    errors: list[InvalidPart] | None = Field(default=None, description="What is wrong with which part of the request.")


class Problem(Exception):
    """An error of a request, as it is answered."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[InvalidPart] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.body = ProblemBody(
            type=f"urn:queuert:problem:{code}",
            title=phrase(status),
            status=status,
            detail=detail,
            errors=None if errors is None else list(errors),
        )
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The answer."""
        content = to_json(self.body, exclude_none=True)
        return Response(content, self.body.status, {**self.headers, "Cache-Control": "no-store"}, MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """Return the problem of an error; one that nobody expects is logged, and its text is not shown.

    Nor is what handlers and workers said, which only who may read payloads sees: routes for these say it themselves.
    """
    if isinstance(error, Problem):
        return error
    for cls, code in _CODES:
        if not isinstance(error, cls):
            continue
        status = _STATUS_OF.get(cls, _STATUSES[error.kind])
        if error.kind is ErrorKind.UNAVAILABLE:
            _log.error("the store is not available: %s", error)
            return Problem(status, code, _UNAVAILABLE, headers={"Retry-After": "1"})
        if error.kind is ErrorKind.FORBIDDEN:
            _log.error("the store refused a request: %s", error)
            return Problem(status, code, _FORBIDDEN)
        parts = [InvalidPart(path=error.path, reason=error.reason)] if isinstance(error, PayloadError) else None
        return Problem(status, code, _shown(error), errors=parts)
    _log.error("a request failed", exc_info=error)
    return Problem(500, "failed", _FAILED)


def _shown(error: QueuertError) -> str:
    """The text of an error, without errors of handlers, reasons of cancellations, and what holds a job where."""
    match error:
        case JobFailedError():
            return f"chain {error.chain_id!r} failed"
        case ChainCancelledError():
            return f"chain {error.chain_id!r} was cancelled"
        case WaitTimeoutError():
            return str(WaitTimeoutError(error.open_ids, error.timeout))
        case _:
            return str(error)


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error of Queuert by a problem with its status: 404, 409, 422, 503 and so on.

    It may be shown to anybody who may use the route: errors of handlers, reasons of cancellations, and what holds a
    chain at which worker are left out. A route for those who may see these catches ``JobFailedError``,
    ``ChainCancelledError`` and ``WaitTimeoutError``.

    For routes of your own, in FastAPI and Starlette::

        app.add_exception_handler(QueuertError, answer_error)
    """
    return problem_of(error).response()


async def answer_http_exception(request: Request, error: Any) -> Response:
    """Answer what the router raised (404, 405), or a callback of the application."""
    assert isinstance(error, HTTPException)
    code = phrase_code(error.status_code)
    return Problem(error.status_code, code, str(error.detail), headers=error.headers).response()


def phrase_code(status: int) -> str:
    """Return the code of an error that has a status alone, such as ``not-found``."""
    return phrase(status).lower().replace(" ", "-")


def phrase(status: int) -> str:
    """Return the words of an HTTP status, also of one that an application has of its own."""
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"
