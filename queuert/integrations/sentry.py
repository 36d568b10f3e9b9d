"""Sentry: a transaction an attempt, a span a start, errors once an attempt, and check-ins of recurring schedules.

It needs ``queuert[sentry]`` and a ``sentry_sdk.init(...)`` of yours. Give it to the client; the workers of that client
use it as well::

    client = AsyncClient(state, job_types, middlewares=[SentryMiddleware()])

Beside :class:`~queuert.observability.otel_tracing.OTelMiddleware` it can be given in the same list: both contexts are
stored with a job. With the experimental span streaming of sentry-sdk there are errors and check-ins, and no spans.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Final, Literal

from queuert.errors import ConfigurationError, RetryLater
from queuert.observability.tracing import AttemptEnd, AttemptSpan, Send, SendSpan, TracingMiddleware
from queuert.optional_packages import needing_extras
from queuert.schedules import tick_of
from queuert.state.types import ClaimedJob, Finish, FinishKind, ScheduleRecord, StartedJob
from queuert.trace_context import decoded_context

with needing_extras():
    import sentry_sdk
    from sentry_sdk.crons import MonitorStatus, capture_checkin
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.scope import use_isolation_scope

_ORIGIN: Final = "auto.queue.queuert"
_NAMESPACE: Final = uuid.UUID("6f0c5a0e-6a0f-5b9d-9d0a-5d2f4f1f6b11")
_CHECK_IN = {
    FinishKind.COMPLETE: MonitorStatus.OK,
    FinishKind.CANCEL: MonitorStatus.OK,
    FinishKind.FAIL: MonitorStatus.ERROR,
}


class AttemptFailedError(Exception):
    """What is sent for an attempt that failed without an exception: a timeout, a killed process, ``attempt.fail()``."""


class SentryMiddleware(TracingMiddleware):
    """Sends attempts, starts and check-ins to Sentry.

    An error is captured once an attempt, with the exception itself: at the level ``error`` if the job has failed, and
    at ``retries`` if it is tried again. Its fingerprint is the job type and the class of the exception. Attempts that
    lost their lease, were cancelled or asked for their own retry are no errors.

    The logger ``queuert`` is ignored by Sentry's logging integration, as its records tell of the same errors.

    Args:
        retries: the level of errors of attempts that are tried again; None does not capture them.
        check_ins: whether chains of recurring schedules are check-ins of a monitor with the schedule's name.

    Raises:
        ConfigurationError: ``retries`` is no level.
    """

    def __init__(
        self, *, retries: Literal["error", "warning", "info"] | None = "warning", check_ins: bool = True
    ) -> None:
        if retries not in ("error", "warning", "info", None):
            raise ConfigurationError(f"retries must be 'error', 'warning', 'info' or None, got {retries!r}")
        self._retries = retries
        self._check_ins = check_ins
        ignore_logger("queuert")

    def begin_send(self, send: Send) -> SendSpan:
        """A span around the start, if a transaction is under way, and check-ins for ticks."""
        return _Sent(send, check_ins=self._check_ins)

    def begin_attempt(self, job: ClaimedJob, worker: str) -> AttemptSpan:
        """An isolation scope and a transaction."""
        return _Attempt(job, worker, retries=self._retries, check_ins=self._check_ins)


class _Sent(SendSpan):
    def __init__(self, send: Send, *, check_ins: bool) -> None:
        self._send = send
        self._check_ins = check_ins
        name = send.types[0] if len(send.types) == 1 else "queuert"
        self._span = sentry_sdk.start_span(op="queue.submit.queuert", name=name, origin=_ORIGIN)
        self._span.set_data("messaging.system", "queuert")
        self._span.set_data("messaging.destination.name", name)

    def enter(self) -> None:
        self._span.__enter__()

    def inject(self, job_type: str, job_id: str, carrier: MutableMapping[str, str]) -> None:
        headers = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
        _add(carrier, headers)
        if self._send.count == 1:
            self._span.set_data("messaging.message.id", job_id)

    def started(self, jobs: Sequence[StartedJob]) -> None:
        schedule = self._send.schedule
        if schedule is None or not self._check_ins or (config := _monitor(schedule)) is None:
            return
        for job in jobs:
            if not job.existing and _schedule_of(job.id) is not None:
                capture_checkin(
                    monitor_slug=_slug(schedule.name),
                    check_in_id=_check_in_id(job.id),
                    status=MonitorStatus.IN_PROGRESS,
                    monitor_config=config,
                )

    def exit(self, error: BaseException | None) -> None:
        self._span.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


class _Attempt(AttemptSpan):
    def __init__(self, job: ClaimedJob, worker: str, *, retries: str | None, check_ins: bool) -> None:
        self._job = job
        self._retries = retries
        self._check_ins = check_ins
        self._manager = sentry_sdk.isolation_scope()
        self._scope = self._manager.__enter__()
        self._scope.clear_breadcrumbs()
        self._scope.set_transaction_name(job.type, source="task")
        for name, value in (("job_id", job.id), ("chain_id", job.chain_id), ("type", job.type), ("worker", worker)):
            self._scope.set_tag(f"queuert_{name}", value)
        self._scope.set_tag("queuert_attempt", str(job.attempt))
        self._transaction: Any = sentry_sdk.start_transaction(
            sentry_sdk.continue_trace(
                dict(decoded_context(job.trace_context)),
                op="queue.task.queuert", name=job.type, source="task", origin=_ORIGIN,
            )
        )  # fmt: skip
        self._transaction.__enter__()
        self._describe()
        self.recorded = bool(self._transaction.sampled)

    def _describe(self) -> None:
        job, waited = self._job, (self._job.started_at - self._job.scheduled_at).total_seconds()
        for name, value in (
            ("system", "queuert"),
            ("destination.name", job.type),
            ("message.id", job.id),
            ("message.retry.count", job.attempt - 1),
            ("message.receive.latency", max(0.0, waited) * 1_000),  # milliseconds
        ):
            self._transaction.set_data(f"messaging.{name}", value)

    def inject(self, carrier: MutableMapping[str, str]) -> None:
        _add(carrier, dict(self._transaction.iter_headers()))

    def end(self, end: AttemptEnd) -> None:
        finish = end.finish
        with use_isolation_scope(self._scope):
            if finish is None:
                reason = "" if end.reason is None else end.reason.value
                sentry_sdk.add_breadcrumb(category="queuert", message=f"attempt aborted: {reason}", level="warning")
            else:
                self._capture(finish, end.error)
                self._check_in(finish)
        failed = finish is not None and finish.kind in (FinishKind.RETRY, FinishKind.FAIL)
        self._transaction.set_status("internal_error" if failed else "aborted" if finish is None else "ok")
        self._transaction.__exit__(None, None, None)
        self._manager.__exit__(None, None, None)

    def rejected(self, error: BaseException, instead: Finish) -> None:
        with use_isolation_scope(self._scope):
            self._capture(instead, error)
            self._check_in(instead)

    def _capture(self, finish: Finish, error: BaseException | None) -> None:
        if finish.kind is FinishKind.FAIL:
            level: str | None = "error"
        elif finish.kind is FinishKind.RETRY and not _wanted_by_handler(finish, error):
            level = self._retries
        else:
            return
        if level is None:
            return
        if error is None or (finish.error is not None and finish.error.kind == "timeout"):
            error = AttemptFailedError("it failed" if finish.error is None else str(finish.error))
        kind = finish.error.kind if isinstance(error, AttemptFailedError) and finish.error else type(error).__qualname__
        sentry_sdk.capture_exception(error, level=level, fingerprint=["queuert", self._job.type, kind])

    def _check_in(self, finish: Finish) -> None:
        status = _CHECK_IN.get(finish.kind)
        if status is None or not self._check_ins or (name := _schedule_of(self._job.chain_id)) is None:
            return
        # Without a duration Sentry takes the time since the check-in of the start. That is right for chains of any
        # length, and compares no two clocks.
        capture_checkin(monitor_slug=_slug(name), check_in_id=_check_in_id(self._job.chain_id), status=status)


def _wanted_by_handler(finish: Finish, error: BaseException | None) -> bool:
    """Whether the handler itself asked to be tried again."""
    return isinstance(error, RetryLater) or (
        error is None and finish.error is not None and finish.error.kind == "retry"
    )


def _add(carrier: MutableMapping[str, str], headers: Mapping[str, str | None]) -> None:
    """Add Sentry's headers; its baggage goes beside that of others."""
    for name, value in headers.items():
        if value:
            carrier[name] = f"{carrier[name]},{value}" if name == "baggage" and carrier.get(name) else value


# --- monitors ---------------------------------------------------------------------------------------------------------


def _schedule_of(chain_id: str) -> str | None:
    """The schedule whose tick has this chain id."""
    try:
        tick_of(chain_id)
    except ValueError:
        return None
    return chain_id.rpartition("@")[0]


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:50] or "schedule"


def _check_in_id(chain_id: str) -> str:
    """The same for every worker: the one that fires the tick, and the one that ends the chain."""
    return uuid.uuid5(_NAMESPACE, chain_id).hex


def _monitor(schedule: ScheduleRecord) -> Any:
    """The configuration of a monitor; None where Sentry cannot have one, as with pauses that are no whole minutes."""
    if schedule.cron is not None:
        return {"schedule": {"type": "crontab", "value": schedule.cron}, "timezone": schedule.time_zone}
    if schedule.every is None or schedule.every % 60:
        return None
    return {"schedule": {"type": "interval", "value": int(schedule.every // 60), "unit": "minute"}}
