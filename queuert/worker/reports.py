"""Tells what became of an attempt: events for observers, hints for whoever waits. Only after it is durable."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime

from queuert.jobs import AbortReason, ChainStatus, JobError
from queuert.notify.adapter import Topic
from queuert.observability import events
from queuert.state.adapter import ClaimedJob, Finish, FinishKind, FinishResult
from queuert.worker.endings import error_of
from queuert.worker.services import Services

_CHAIN_STATUS = {
    FinishKind.COMPLETE: ChainStatus.COMPLETED,
    FinishKind.FAIL: ChainStatus.FAILED,
    FinishKind.CANCEL: ChainStatus.CANCELLED,
}

_ENDING_EVENTS: dict[FinishKind, type[events.Event]] = {
    FinishKind.COMPLETE: events.AttemptCompleted,
    FinishKind.CONTINUE: events.AttemptContinued,
    FinishKind.RETRY: events.AttemptRetried,
    FinishKind.FAIL: events.AttemptFailed,
    FinishKind.CANCEL: events.AttemptCancelled,
    FinishKind.INTERRUPT: events.AttemptInterrupted,
    FinishKind.WAIT: events.AttemptWaiting,
}

_UNKNOWN = JobError("unknown", "no reason was given")


class AttemptReports:
    """The reports of one attempt."""

    __slots__ = ("_began", "_job", "_observers", "_services")

    def __init__(self, services: Services, job: ClaimedJob) -> None:
        self._services = services
        self._observers = services.observers
        self._job = job
        self._began = time.monotonic()

    @property
    def _identity(self) -> events.Identity:
        job = self._job
        return {
            "worker": self._services.worker,
            "job_id": job.id,
            "chain_id": job.chain_id,
            "type": job.type,
            "attempt": job.attempt,
        }

    @property
    def duration(self) -> float:
        """Seconds since the handler began."""
        return time.monotonic() - self._began

    def started(self) -> None:
        """The handler begins."""
        self._began = time.monotonic()
        if not self._observers.want(events.AttemptStarted):
            return
        waited = (self._job.started_at - self._job.scheduled_at).total_seconds()
        self._observers.emit(events.AttemptStarted(**self._identity, waited=max(0.0, waited)))

    def aborted(self, reason: AbortReason) -> None:
        """The handler was told to stop."""
        self._observers.emit(events.AttemptAborted(**self._identity, reason=reason))

    def killed(self, reason: AbortReason) -> None:
        """The process of the handler was killed."""
        self._observers.emit(events.HandlerKilled(**self._identity, reason=reason))

    def refused(self, reason: AbortReason) -> None:
        """An ending was not written."""
        self._observers.emit(events.CommitRefused(**self._identity, reason=reason))

    def ignored(self, error: BaseException) -> None:
        """The handler raised after its job was completed."""
        self._observers.emit(events.ErrorAfterCompletion(**self._identity, error=error_of(error)))

    def unheeded(self, error: BaseException) -> None:
        """The hook after the attempt raised, or left what cannot be written."""
        self._observers.emit(events.AfterAttemptFailed(**self._identity, error=error_of(error)))

    def broken(self, error: Exception) -> None:
        """The ending could not be written."""
        self._observers.emit(events.AttemptBroken(**self._identity, error=error_of(error, "store")))

    def ended(self, finish: Finish, result: FinishResult) -> None:
        """The ending was written, or refused."""
        if result.lost is not None:
            self.refused(result.lost)
            return
        self._hint(finish, result)
        if self._observers.want(_ENDING_EVENTS[finish.kind]):
            self._observers.emit(self._ending_event(finish))
        if finish.kind.closes_chain and self._observers.want(events.ChainClosed):
            self._observers.emit(self._chain_event(finish))

    def _hint(self, finish: Finish, result: FinishResult) -> None:
        readied: Iterable[str] = result.readied
        if self._job.type in self._services.limited:
            readied = {*readied, self._job.type}
        if readied:
            self._services.wake_claimer(readied)
            self._services.notify.publish(Topic.JOBS, readied)
        if finish.kind.closes_chain:
            self._services.notify.publish(Topic.CHAINS, (self._job.chain_id,))

    def _ending_event(self, finish: Finish) -> events.Event:
        identity, duration, error = self._identity, self.duration, finish.error or _UNKNOWN
        match finish.kind:
            case FinishKind.COMPLETE:
                return events.AttemptCompleted(**identity, duration=duration)
            case FinishKind.CONTINUE:
                following = finish.continuation
                next_type, next_id = (following.type, following.id) if following else ("", "")
                return events.AttemptContinued(**identity, duration=duration, next_type=next_type, next_job_id=next_id)
            case FinishKind.RETRY:
                return events.AttemptRetried(**identity, duration=duration, error=error, retry_in=finish.delay)
            case FinishKind.FAIL:
                return events.AttemptFailed(**identity, duration=duration, error=error)
            case FinishKind.CANCEL:
                return events.AttemptCancelled(**identity, duration=duration, error=error)
            case FinishKind.INTERRUPT:
                return events.AttemptInterrupted(**identity, duration=duration)
            case FinishKind.WAIT:
                return events.AttemptWaiting(**identity, duration=duration, blockers=len(finish.blockers))

    def _chain_event(self, finish: Finish) -> events.Event:
        job = self._job
        # Only of a chain of one job is the beginning known here.
        lasted = (datetime.now(UTC) - job.created_at).total_seconds() if job.chain_index == 0 else None
        return events.ChainClosed(
            chain_id=job.chain_id, type=job.chain_type, status=_CHAIN_STATUS[finish.kind], duration=lasted
        )
