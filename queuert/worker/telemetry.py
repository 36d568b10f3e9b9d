"""Reports attempts: events for observers, notifications, and counts. A finish is reported only after it is durable."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Container, Sequence
from contextvars import Context
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from queuert.activity import (
    BUCKETS,
    COUNTS,
    MINUTE,
    NUMBERS,
    RUN_BEGINS,
    WAIT_BEGINS,
    Activity,
    ActivityReport,
)
from queuert.jobs import AbortReason, ChainStatus, JobError
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.observability import events
from queuert.observability.adapter import Observers
from queuert.run_at import RunAt
from queuert.state.types import ClaimedJob, Finish, FinishKind, FinishResult
from queuert.worker.finishes import error_of
from queuert.worker.leases import lease_time
from queuert.worker.phases import PhaseReport

if TYPE_CHECKING:
    from queuert.worker.claimer import Claimer

MAX_PENDING = 2_000
"""Rows of minute and job type that wait for the store while it takes no reports; beyond, the oldest are dropped."""

_BITS = range(64)
"""As many bits as the milliseconds of any ``timedelta`` have."""

WAIT_AT = tuple(WAIT_BEGINS + min(bits, BUCKETS - 1) for bits in _BITS)
RUN_AT = tuple(RUN_BEGINS + min(bits, BUCKETS - 1) for bits in _BITS)
"""Where the bucket is of a duration whose whole milliseconds have so many bits."""

STARTED = COUNTS.index("started")
REJECTED = COUNTS.index("rejected")
REAPED = COUNTS.index("reaped")
_ENDED_AT = {
    FinishKind.COMPLETE: COUNTS.index("completed"),
    FinishKind.CONTINUE: COUNTS.index("continued"),
    FinishKind.RETRY: COUNTS.index("retried"),
    FinishKind.FAIL: COUNTS.index("failed"),
    FinishKind.CANCEL: COUNTS.index("cancelled"),
    FinishKind.INTERRUPT: COUNTS.index("interrupted"),
    FinishKind.WAIT: COUNTS.index("waiting"),
    FinishKind.SNOOZE: COUNTS.index("snoozed"),
}

_NONE = (0,) * NUMBERS

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
    FinishKind.SNOOZE: events.AttemptSnoozed,
}

_UNKNOWN = JobError("unknown", "no reason was given")


class HasContext(Protocol):
    """An attempt, in whose context its events are emitted."""

    def copied_context(self) -> Context:
        """Return a copy of the context of its handler."""
        ...


FinishReport: TypeAlias = tuple[Finish, FinishResult, float, float, HasContext | None]
"""A finish that was written, or rejected: the seconds that the handler ran, when the claim was sent, by the lease
clock, and the attempt; None if its context is the current one. A plain tuple, since each job has one: a named one takes
five times as long to make."""


class ActivityCounter:
    """What one worker did since it last collected it, and what it has not yet reported.

    Attempts are counted from any thread; all else is called by the thread that sends heartbeats.
    """

    def __init__(self) -> None:
        self.begun: list[ClaimedJob] = []
        """Jobs whose handlers began and that are not counted yet. To append one is all that a start costs."""
        self._lock = threading.Lock()
        """For all that is counted: also blocks in threads, and child processes, report finishes."""
        self._counts = _no_counts()
        """Numbers by job type: see :data:`~queuert.activity.NUMBERS`."""
        self._pending: dict[tuple[int, str], list[int]] = {}
        """Numbers by minute since 1970 and job type that no report has."""
        self._report: ActivityReport | None = None
        """The report that the store has not confirmed."""
        self._number = 0

    def count_finished(self, reports: Sequence[FinishReport]) -> None:
        """Count what has begun since the last call, and finishes that were written."""
        with self._lock:
            begun, counts = self.begun, self._counts
            # Others append to it meanwhile.
            size = len(begun)
            for job in begun[:size]:
                waited = (job.started_at - job.scheduled_at).total_seconds()
                # Less than nothing only if the store's clock was set back.
                counts[job.type][WAIT_AT[int(waited * 1000).bit_length() if waited > 0.0 else 0]] += 1
            del begun[:size]
            for finish, result, duration, _, _ in reports:
                if result.lost is None:
                    numbers = counts[finish.job.type]
                    numbers[_ENDED_AT[finish.kind]] += 1
                    numbers[RUN_BEGINS if duration < 0.001 else RUN_AT[int(duration * 1000).bit_length()]] += 1

    def count_one(self, type: str, index: int) -> None:
        """Count one attempt: for what is rare."""
        with self._lock:
            self._counts[type][index] += 1

    def collect(self, minute: int) -> int:
        """Add what was counted since the last call to this minute since 1970.

        Returns:
            The number of rows that were dropped, since the store has not taken a report for long.
        """
        self.count_finished(())
        with self._lock:
            counts, self._counts = self._counts, _no_counts()
        for type, numbers in counts.items():
            # Each attempt that began is in one bucket of the wait.
            numbers[STARTED] = sum(numbers[WAIT_BEGINS:RUN_BEGINS])
            known = self._pending.get((minute, type), _NONE)
            self._pending[minute, type] = [a + b for a, b in zip(known, numbers, strict=True)]
        excess = sorted(self._pending)[: max(0, len(self._pending) - MAX_PENDING)]
        for key in excess:
            del self._pending[key]
        return len(excess)

    def report(self, worker: str) -> ActivityReport | None:
        """Return what is to be reported: the same as before, until it is confirmed."""
        if self._report is None and self._pending:
            self._number += 1
            pending, self._pending = self._pending, {}
            minutes = [
                Activity.of(datetime.fromtimestamp(minute * MINUTE, UTC), MINUTE, type, worker, numbers)
                for (minute, type), numbers in sorted(pending.items())
            ]
            self._report = ActivityReport(self._number, minutes)
        return self._report

    def confirmed(self) -> bool:
        """The store has the report. Return whether there is another."""
        self._report = None
        return bool(self._pending)


def _no_counts() -> defaultdict[str, list[int]]:
    return defaultdict(partial(list, _NONE))


class AttemptReporter:
    """Reports the attempts of one worker, and counts them.

    The claimer is woken for types whose jobs became due by a finish. ``limited`` are the types with limits: a job of
    such a type may be claimable when an attempt of it ends.
    """

    def __init__(
        self,
        worker: str,
        observers: Observers,
        notify: NotifyAdapter,
        claimer: Claimer,
        activity: ActivityCounter,
        limited: frozenset[str] = frozenset(),
    ) -> None:
        self._worker = worker
        self._observers = observers
        self._notify = notify
        self._claimer = claimer
        self._activity = activity
        self._begun = activity.begun.append
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
        self._begun(job)
        if self._reports_starts:
            waited = (job.started_at - job.scheduled_at).total_seconds()
            self._observers.emit(events.AttemptStarted(**self._identity(job), waited=max(0.0, waited)))

    def phase(self, job: ClaimedJob, report: PhaseReport) -> None:
        """A phase was begun, completed, or left by an exception."""
        phase = report.phase
        named = events.PhaseIdentity(phase=phase.name, number=phase.number, count=phase.count)
        if report.kind == "started":
            self._observers.emit(events.PhaseStarted(**self._identity(job), **named))
        elif report.kind == "completed":
            self._observers.emit(events.PhaseCompleted(**self._identity(job), **named, duration=report.duration))
        else:
            error = report.error or _UNKNOWN
            self._observers.emit(
                events.PhaseFailed(**self._identity(job), **named, duration=report.duration, error=error)
            )

    def aborted(self, job: ClaimedJob, reason: AbortReason) -> None:
        """The attempt was aborted."""
        self._observers.emit(events.AttemptAborted(**self._identity(job), reason=reason))

    def killed(self, job: ClaimedJob, reason: AbortReason) -> None:
        """The process of the handler was killed."""
        self._observers.emit(events.HandlerKilled(**self._identity(job), reason=reason))

    def waits(self, job: ClaimedJob, waits_for: str, slots: int) -> None:
        """The handler waits in its slot for a job that needs one of the same slots."""
        self._observers.emit(events.HandlerWaits(**self._identity(job), waits_for=waits_for, slots=slots))

    def block_failed(self, error: str, failures: int) -> None:
        """A block of an attempt failed at the store, or whether it was committed cannot be found out yet."""
        failed = events.StoreCallFailed(worker=self._worker, operation="complete", error=error, failures=failures)
        self._observers.emit(failed)

    def commit_known(self, failures: int) -> None:
        """Whether the block of an attempt was committed is known, after so many failures."""
        if failures:
            self._observers.emit(events.LoopRecovered(worker=self._worker, loop="complete", failures=failures))

    def finish_rejected(self, job: ClaimedJob, reason: AbortReason) -> None:
        """A finish was not written, since the lease does not hold."""
        self._activity.count_one(job.type, REJECTED)
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
        """Finishes were written, or rejected: notify once for all, and emit events for each.

        Observers get them in the context of the attempt: what its middlewares or its handler have bound for log records
        is on the last ones as well.
        """
        kinds = self._publish(reports)
        self._activity.count_finished(reports)
        wants = self._observers.want
        wanted: set[FinishKind | None] = set()
        for one in kinds:
            if one is None or wants(_FINISH_EVENTS[one]):
                wanted.add(one)
        wants_chains = wants(events.ChainClosed)
        if not wanted and not wants_chains:
            return
        for report in reports:
            attempt = report[4]
            if attempt is None:
                self._emit_finished(report, wanted, wants_chains)
            else:
                attempt.copied_context().run(self._emit_finished, report, wanted, wants_chains)

    def _emit_finished(self, report: FinishReport, wanted: Container[FinishKind | None], wants_chains: bool) -> None:
        finish, result, duration, _, _ = report
        if result.lost is not None:
            self.finish_rejected(finish.job, result.lost)
            return
        if finish.kind in wanted:
            self._observers.emit(self._finish_event(finish, duration))
        if wants_chains and finish.kind in _CHAIN_STATUS:
            self._observers.emit(_chain_closed(report))

    def _publish(self, reports: Sequence[FinishReport]) -> set[FinishKind | None]:
        """Notify of the jobs that became due and the chains that closed by finishes that were written.

        Returns:
            The kinds of the finishes that were written; None among them if some were rejected.
        """
        due_types: set[str] = set()
        closed: list[str] = []
        kinds: set[FinishKind | None] = set()
        limited = self._limited
        for finish, result, _, _, _ in reports:
            if result.lost is not None:
                kinds.add(None)
                continue
            kind = finish.kind
            kinds.add(kind)
            if result.due_types:
                due_types.update(result.due_types)
            if limited:
                # The end of a chain lets the next one of its key begin, if its type has an order.
                due_types.update(limited.intersection((finish.job.type, finish.job.chain_type)))
            if kind in _CHAIN_STATUS:
                closed.append(finish.job.chain_id)
        if due_types:
            self._claimer.on_jobs_due(due_types)
            self._notify.publish(Topic.JOBS, due_types)
        if closed:
            self._notify.publish(Topic.CHAINS, closed)
        return kinds

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
            case FinishKind.SNOOZE:
                return events.AttemptSnoozed(
                    **identity,
                    duration=duration,
                    due_in=_due_in(finish.run_at),
                    awaited_event=finish.waits_for_event,
                )


def _due_in(run_at: RunAt | None) -> float:
    if run_at is None or run_at.moment is None:
        return 0.0 if run_at is None else run_at.delay or 0.0
    return max(0.0, (run_at.moment - datetime.now(UTC)).total_seconds())


def _chain_closed(report: FinishReport) -> events.Event:
    finish, result, _, claimed_at, _ = report
    job, seconds = finish.job, result.chain_seconds
    if job.chain_index == 0:
        # The age of the first job at its claim is by the store's clock, the time since then by the lease clock: the two
        # clocks are never compared.
        seconds = (job.started_at - job.created_at).total_seconds() + lease_time() - claimed_at
    status = _CHAIN_STATUS[finish.kind]
    return events.ChainClosed(chain_id=job.chain_id, type=job.chain_type, status=status, duration=seconds)
