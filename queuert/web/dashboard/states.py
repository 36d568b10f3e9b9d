"""The states of a job as a picture, with the path that the job has taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queuert.jobs import Job, JobStatus

BOX_WIDTH, BOX_HEIGHT = 108, 34
WIDTH, HEIGHT = 660, 210

_SCHEDULED = 1.0
"""Seconds between the creation of a job and its due time from which on it was scheduled."""

_PLACES = {
    JobStatus.BLOCKED: (12, 20),
    JobStatus.SCHEDULED: (12, 148),
    JobStatus.READY: (168, 84),
    JobStatus.RUNNING: (334, 84),
    JobStatus.CONTINUED: (540, 8),
    JobStatus.COMPLETED: (540, 60),
    JobStatus.FAILED: (540, 112),
    JobStatus.CANCELLED: (540, 164),
}


@dataclass(frozen=True, slots=True)
class State:
    """A state, and whether the job was in it."""

    status: str
    x: int
    y: int
    reached: bool
    current: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class Move:
    """An arrow from one state to another."""

    path: str
    taken: bool


@dataclass(frozen=True, slots=True)
class StateMachine:
    """The picture."""

    states: Sequence[State]
    moves: Sequence[Move]

    @property
    def label(self) -> str:
        """What a screen reader says."""
        path = " then ".join(f"{one.status}{f' {one.note}' if one.note else ''}" for one in self.states if one.reached)
        return f"States that the job was in: {path}"


def machine_of(job: Job, *, had_blockers: bool) -> StateMachine:
    """Return the picture of a job, from what its row says: its attempts and failures, and its present state."""
    was: set[tuple[JobStatus, JobStatus]] = set()
    again = any(one.attempt < job.attempt or not job.status.final for one in job.failures)
    late = (job.scheduled_at - job.created_at).total_seconds() > _SCHEDULED and not job.failures
    waited = again or late or job.status is JobStatus.SCHEDULED
    if job.attempt:
        was.add((JobStatus.READY, JobStatus.RUNNING))
    if job.attempt > 1 or (job.attempt == 1 and job.status in (JobStatus.SCHEDULED, JobStatus.READY)):
        was.add((JobStatus.RUNNING, JobStatus.SCHEDULED))
    if waited and (job.attempt or job.status is not JobStatus.SCHEDULED):
        was.add((JobStatus.SCHEDULED, JobStatus.READY))
    if job.status.final and job.attempt:
        was.add((JobStatus.RUNNING, job.status))
    if had_blockers and job.status is not JobStatus.BLOCKED:
        was.add((JobStatus.BLOCKED, JobStatus.READY))
    reached = {status for move in was for status in move} | {job.status}
    notes = {}
    if job.attempt > 1:
        notes[JobStatus.RUNNING] = f"{job.attempt} times"
    if again:
        notes[JobStatus.SCHEDULED] = "to retry"
    states = [
        State(str(status), x, y, status in reached, status is job.status, notes.get(status, ""))
        for status, (x, y) in _PLACES.items()
    ]
    return StateMachine(states, [Move(path, move in was) for move, path in _PATHS.items()])


def _right(begin: JobStatus, end: JobStatus) -> str:
    (x, y), (to_x, to_y) = _PLACES[begin], _PLACES[end]
    x, y, to_y = x + BOX_WIDTH, y + BOX_HEIGHT // 2, to_y + BOX_HEIGHT // 2
    middle = (x + to_x) // 2
    return f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x - 3} {to_y}"


def _back() -> str:
    """From running down and back to scheduled."""
    (x, y), (to_x, to_y) = _PLACES[JobStatus.RUNNING], _PLACES[JobStatus.SCHEDULED]
    x, y, to_x, to_y = x + BOX_WIDTH // 2, y + BOX_HEIGHT, to_x + BOX_WIDTH, to_y + BOX_HEIGHT // 2 + 6
    return f"M{x} {y}C{x} {to_y} {x - 40} {to_y} {to_x + 3} {to_y}"


_FINAL = (JobStatus.CONTINUED, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
_PATHS = {
    (JobStatus.BLOCKED, JobStatus.READY): _right(JobStatus.BLOCKED, JobStatus.READY),
    (JobStatus.SCHEDULED, JobStatus.READY): _right(JobStatus.SCHEDULED, JobStatus.READY),
    (JobStatus.READY, JobStatus.RUNNING): _right(JobStatus.READY, JobStatus.RUNNING),
    (JobStatus.RUNNING, JobStatus.SCHEDULED): _back(),
    **{(JobStatus.RUNNING, status): _right(JobStatus.RUNNING, status) for status in _FINAL},
}
