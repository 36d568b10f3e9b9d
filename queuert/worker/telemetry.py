"""Reports attempts: events for observers, and notifications. A finish is reported only after it is durable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from queuert.jobs import AbortReason, ChainStatus, JobError
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability import events
from queuert.observability.adapter import Observers
from queuert.state.types import ClaimedJob, Finish, FinishKind, FinishResult
from queuert.worker.finishes import error_of
from queuert.worker.leases import lease_time

if TYPE_CHECKING:
    from queuert.worker.claimer import Claimer

_CHAIN_STATUS: dict[FinishKind, ChainStatus] = {
    FinishKind.COMPLETE: ChainStatus.COMPLETED,
    FinishKind.FAIL: ChainStatus.FAILED,
    FinishKind.CANCEL: ChainStatus.CANCELLED,
}

_FINISH_EVENTS: dict[FinishKind, type[events.Event]] = {
    FinishKind.COMPLETE: events.AttemptCompleted,
    FinishKind.CONTINUE: events.AttemptContinued,
    FinishKind.RETRY: events.AttemptRetried,
    FinishKind.FAIL: events.AttemptFailed,
    FinishKind.CANCEL: events.AttemptCancelled,
    FinishKind.INTERRUPT: events.AttemptInterrupted,
    FinishKind.WAIT: events.AttemptWaiting,
}

_UNKNOWN = JobError("unknown", "no reason was given")


class FinishReport(NamedTuple):
    """A finish that was written, or rejected."""

    finish: Finish
    result: FinishResult
    duration: float
    """Seconds that the handler ran."""
    claimed_at: float
    """When the claim was sent, by the lease clock."""


class AttemptReporter:
    """Reports the attempts of one worker.

    The claimer is woken for types whose jobs became due by a finish. ``limited`` are the types with limits: a job of
    such a type may be claimable when an attempt of it ends.
    """

    def __init__(
        self,
        worker: str,
        observers: Observers,
        notify: NotifyAdapter,
        claimer: Claimer,
        limited: frozenset[str] = frozenset(),
    ) -> None:
        self._worker = worker
        self._observers = observers
        self._notify = notify
        self._claimer = claimer
        self._limited = limited
        self._reports_starts = True

    def _identity(self, job: ClaimedJob) -> events.Identity:
        return {
            "worker": self._worker,
            "job_id": job.id,
            "chain_id": job.chain_id,
            "type": job.type,
            "attempt": job.attempt,
        }

    def claimed(self) -> None:
        """Jobs were claimed: find out, once for all of them, whether an observer wants their start."""
        self._reports_starts = self._observers.want(events.AttemptStarted)

    def started(self, job: ClaimedJob) -> None:
        """The handler begins."""
        if self._reports_starts:
            waited = (job.started_at - job.scheduled_at).total_seconds()
            self._observers.emit(events.AttemptStarted(**self._identity(job), waited=max(0.0, waited)))

    def aborted(self, job: ClaimedJob, reason: AbortReason) -> None:
        """The attempt was aborted."""
        self._observers.emit(events.AttemptAborted(**self._identity(job), reason=reason))

    def killed(self, job: ClaimedJob, reason: AbortReason) -> None:
        """The process of the handler was killed."""
        self._observers.emit(events.HandlerKilled(**self._identity(job), reason=reason))

    def finish_rejected(self, job: ClaimedJob, reason: AbortReason) -> None:
        """A finish was not written, since the lease does not hold."""
        self._observers.emit(events.FinishRejected(**self._identity(job), reason=reason))

    def error_after_completion(self, job: ClaimedJob, error: BaseException) -> None:
        """The handler raised after its job was completed."""
        self._observers.emit(events.ErrorAfterCompletion(**self._identity(job), error=error_of(error)))

    def after_attempt_failed(self, job: ClaimedJob, error: BaseException) -> None:
        """The hook ``after_attempt`` raised, or its changes cannot be written."""
        self._observers.emit(events.AfterAttemptFailed(**self._identity(job), error=error_of(error)))

    def finish_failed(self, job: ClaimedJob, error: Exception) -> None:
        """The finish could not be written: the job is run again after its lease has expired."""
        self._observers.emit(events.FinishFailed(**self._identity(job), error=error_of(error, "store")))

    def finished(self, reports: Sequence[FinishReport]) -> None:
        """Finishes were written, or rejected: notify once for all, and emit events for each."""
        self._publish(reports)
        wants_chains = self._observers.want(events.ChainClosed)
        wanted: dict[FinishKind, bool] = {}
        for report in reports:
            finish, result = report.finish, report.result
            kind = finish.kind
            if result.lost is not None:
                self.finish_rejected(finish.job, result.lost)
                continue
            if kind not in wanted:
                wanted[kind] = self._observers.want(_FINISH_EVENTS[kind])
            if wanted[kind]:
                self._observers.emit(self._finish_event(finish, report.duration))
            if wants_chains and kind in _CHAIN_STATUS:
                self._observers.emit(_chain_closed(report))

    def _publish(self, reports: Sequence[FinishReport]) -> None:
        """Notify of the jobs that became due and the chains that closed by finishes that were written."""
        due_types: set[str] = set()
        closed: list[str] = []
        for finish, result, _, _ in reports:
            if result.lost is not None:
                continue
            due_types.update(result.due_types)
            if finish.job.type in self._limited:
                due_types.add(finish.job.type)
            if finish.kind in _CHAIN_STATUS:
                closed.append(finish.job.chain_id)
        if due_types:
            self._claimer.on_jobs_due(due_types)
            self._notify.publish(Topic.JOBS, due_types)
        if closed:
            self._notify.publish(Topic.CHAINS, closed)

    def _finish_event(self, finish: Finish, duration: float) -> events.Event:
        job = finish.job
        if finish.kind is FinishKind.COMPLETE:
            return events.AttemptCompleted(
                worker=self._worker,
                job_id=job.id,
                chain_id=job.chain_id,
                type=job.type,
                attempt=job.attempt,
                duration=duration,
            )
        identity, error = self._identity(job), finish.error or _UNKNOWN
        match finish.kind:
            case FinishKind.CONTINUE:
                next_job = finish.continuation
                next_type, next_id = (next_job.type, next_job.id) if next_job else ("", "")
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


def _chain_closed(report: FinishReport) -> events.Event:
    job, seconds = report.finish.job, report.result.chain_seconds
    if job.chain_index == 0:
        # The age of the first job at its claim is by the store's clock, the time since then by the lease clock: the two
        # clocks are never compared.
        seconds = (job.started_at - job.created_at).total_seconds() + lease_time() - report.claimed_at
    status = _CHAIN_STATUS[report.finish.kind]
    return events.ChainClosed(chain_id=job.chain_id, type=job.chain_type, status=status, duration=seconds)
