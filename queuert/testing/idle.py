"""Whether a queue has nothing to do now, and what is left in it then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from queuert.jobs import JobStatus
from queuert.observability.events import AttemptStarted
from queuert.state import AsyncStore
from queuert.state.paging import JobFilter, PageRequest
from queuert.testing.attempts import RanAttempt
from queuert.testing.events import EventLog
from queuert.worker import InProcessWorker


@dataclass(frozen=True, slots=True)
class RemainingJobs:
    """The jobs of one type that an idle queue still has.

    Attributes:
        type: the name of the job type.
        held_back: jobs that are due, and that the limits of the type or a pause hold back.
        paused: whether the type is paused.
        scheduled: jobs that are due later, including retries.
        due_at: when the first of them is due, UTC; None if there are none.
        blocked: jobs that wait for other chains.
        for_clients: jobs that a client is to complete, and no handler.
    """

    type: str
    held_back: int = 0
    paused: bool = False
    scheduled: int = 0
    due_at: datetime | None = None
    blocked: int = 0
    for_clients: int = 0

    def __str__(self) -> str:
        parts = []
        if self.held_back:
            parts.append(f"{self.held_back} held back by {'a pause' if self.paused else 'limits'}")
        if self.due_at is not None:
            parts.append(f"{self.scheduled} scheduled, the first for {self.due_at:%Y-%m-%d %H:%M:%S} UTC")
        if self.blocked:
            parts.append(f"{self.blocked} blocked by other chains")
        if self.for_clients:
            parts.append(f"{self.for_clients} for a client to complete")
        return f"{self.type}: {', '.join(parts)}"


class RanUntilIdle(list[RanAttempt]):
    """The attempts that ran, as a list, and what is left.

    Attributes:
        left: the jobs that could not run now, by type.
    """

    def __init__(self, attempts: Sequence[RanAttempt], left: Sequence[RemainingJobs]) -> None:
        super().__init__(attempts)
        self.left = tuple(left)


async def is_idle(store: AsyncStore, worker: InProcessWorker, log: EventLog, types: Sequence[str]) -> bool:
    """Return whether no job of these types can be claimed or runs, no schedule of theirs is due, and no handler of the
    worker runs, at one moment during the call.

    Jobs that limits or a pause hold back cannot be claimed. ``log`` is the event log of the worker that runs the jobs,
    which has recorded its limits in the store.
    """
    before = len(log.of(AttemptStarted))
    if (await store.due_schedules(types, limit=1)).due:
        return False
    if any(one.wanted for one in await store.get_demand(types)):
        return False
    # To the store, a job that was cancelled does not run; its handler does, until it has heard of that and has ended. A
    # job that was claimed and finished between the two reads has emitted events.
    return worker.running == 0 and len(log.of(AttemptStarted)) == before


async def remaining_jobs(store: AsyncStore, types: Sequence[str], client_types: Sequence[str]) -> list[RemainingJobs]:
    """Return what an idle queue still has of types with handlers, and of those that clients complete, by type.

    A job may become due after the queue was idle. It counts as scheduled, since nothing holds it back.
    """
    counts = {(one.type, one.status): one.count for one in await store.count_jobs([*types, *client_types])}
    claimable = {one.type: one.ready + one.due for one in await store.get_demand(types)}
    paused = {one.type for one in await store.list_paused_job_types()}
    found = []
    for type in (*types, *client_types):
        ready, scheduled, blocked = (
            counts.get((type, status), 0) for status in (JobStatus.READY, JobStatus.SCHEDULED, JobStatus.BLOCKED)
        )
        if ready or scheduled or blocked:
            for_clients = ready if type in client_types else 0
            due_since = min(ready - for_clients, claimable.get(type, 0))
            scheduled += due_since
            due_at = await _first_due(store, type, and_now=due_since > 0) if scheduled else None
            held_back = ready - for_clients - due_since
            found.append(RemainingJobs(type, held_back, type in paused, scheduled, due_at, blocked, for_clients))
    return found


async def _first_due(store: AsyncStore, type: str, *, and_now: bool) -> datetime | None:
    """Return when the first of the scheduled jobs of a type is due, with or without those that are due now."""
    statuses = (JobStatus.SCHEDULED, JobStatus.READY) if and_now else (JobStatus.SCHEDULED,)
    times: list[datetime] = []
    cursor: str | None = None
    while True:
        page = await store.list_jobs(JobFilter(types=(type,), statuses=statuses), PageRequest(500, cursor))
        times += [job.scheduled_at for job in page]
        cursor = page.next_cursor
        if cursor is None:
            return min(times, default=None)
