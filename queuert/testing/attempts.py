"""The attempts that ran in a test, from the events of a worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from queuert.jobs import JobError
from queuert.observability import events

_OUTCOMES: dict[type[events.Event], str] = {
    events.AttemptCompleted: "completed",
    events.AttemptContinued: "continued",
    events.AttemptRetried: "retried",
    events.AttemptFailed: "failed",
    events.AttemptCancelled: "cancelled",
    events.AttemptWaiting: "waiting",
    events.AttemptSnoozed: "snoozed",
    events.AttemptInterrupted: "interrupted",
    events.AttemptAborted: "aborted",
    events.FinishRejected: "refused",
    events.FinishFailed: "broken",
}
_WRONG = ("failed", "retried", "refused", "broken")


@dataclass(frozen=True, slots=True)
class RanAttempt:
    """One attempt that ran.

    ``outcome`` is ``completed``, ``continued``, ``retried``, ``failed``, ``cancelled``, ``waiting`` or ``snoozed``, as
    the handler returned it. ``interrupted``: it was still running when the worker was stopped. ``aborted`` and
    ``refused``: it lost its lease, so nothing of it was written. ``broken``: its finish could not be written.
    """

    job_id: str
    chain_id: str
    type: str
    number: int
    outcome: str
    error: JobError | None = None

    @property
    def went_wrong(self) -> bool:
        """Whether the test should fail because of it: the job failed, or the handler raised. A retry that the handler
        returned is no error."""
        requested = self.outcome == "retried" and self.error is not None and self.error.kind == "retry"
        return self.outcome in _WRONG and not requested

    def __str__(self) -> str:
        return f"{self.type} {self.job_id} attempt {self.number}: {self.outcome}"


class UnexpectedFailureError(AssertionError):
    """Attempts failed in a test that did not allow it. ``attempts`` has them; the message has their tracebacks."""

    def __init__(self, attempts: Iterable[RanAttempt]) -> None:
        self.attempts = tuple(attempts)
        failed = "\n".join(_story(attempt) for attempt in self.attempts)
        super().__init__(f"{failed}\nIf the test expects this, pass allow_failures=True")


def _story(attempt: RanAttempt) -> str:
    error = attempt.error
    if error is None:
        return str(attempt)
    return f"{attempt}: {error}" + (f"\n{error.traceback}" if error.traceback else "")


def ran_attempts(reported: Iterable[events.Event]) -> list[RanAttempt]:
    """Return the attempts that ended among these events, in the order in which they ended."""
    found: dict[tuple[str, int], RanAttempt] = {}
    for event in reported:
        outcome = _OUTCOMES.get(type(event))
        if outcome is None:
            continue
        ended = _attempt(event, outcome)
        # Of an abort and the result after it, keep the result.
        found.pop((ended.job_id, ended.number), None)
        found[ended.job_id, ended.number] = ended
    return list(found.values())


def running_attempts(reported: Iterable[events.Event]) -> list[tuple[str, int]]:
    """Return the jobs and numbers of the attempts that started among these events, and whose handlers still run."""
    reported = tuple(reported)
    ended = {(one.job_id, one.number) for one in ran_attempts(reported) if one.outcome != "aborted"}
    started = [(one.job_id, one.attempt) for one in reported if isinstance(one, events.AttemptStarted)]
    return [attempt for attempt in started if attempt not in ended]


def _attempt(event: events.Event, outcome: str) -> RanAttempt:
    fields = ("job_id", "chain_id", "type")
    job_id, chain_id, type = (str(getattr(event, name)) for name in fields)
    number: int = getattr(event, "attempt")  # noqa: B009 - the base class of all events has no such field
    return RanAttempt(job_id, chain_id, type, number, outcome, getattr(event, "error", None))
