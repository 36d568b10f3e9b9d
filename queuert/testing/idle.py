"""Checks whether a queue has nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.jobs import JobStatus
from queuert.observability.events import AttemptStarted
from queuert.state import AsyncStore
from queuert.testing.events import EventLog


async def is_idle(store: AsyncStore, types: Sequence[str], log: EventLog) -> bool:
    """Return whether no job of these types is due or runs, and no schedule of theirs is due, at one moment during the
    call.

    Jobs of paused types do not count. ``log`` is the event log of the worker that runs the jobs.
    """
    before = len(log.of(AttemptStarted))
    paused = {one.type for one in await store.list_paused_job_types()}
    claimable = [type for type in types if type not in paused]
    if (await store.due_schedules(claimable, limit=1)).due:
        return False
    due = await store.next_due(claimable)
    if due is not None and due <= 0:
        return False
    counts = {(one.type, one.status): one.count for one in await store.count_jobs(types)}
    if any(counts.get((type, JobStatus.RUNNING)) for type in types):
        return False
    if any(counts.get((type, JobStatus.READY)) for type in claimable):
        return False
    # A job that was claimed and finished between the two checks has emitted events.
    return len(log.of(AttemptStarted)) == before
