"""Whether a queue has nothing to do."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.jobs import JobStatus
from queuert.observability.events import AttemptStarted
from queuert.state import AsyncStore
from queuert.testing.events import EventLog


async def is_idle(store: AsyncStore, types: Sequence[str], log: EventLog) -> bool:
    """Whether nothing of these types is due or runs, and no schedule of theirs: at a moment while this looks.

    Jobs of paused types are not waited for. ``log`` is that of the worker that runs them.
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
    # What was claimed and ended between the looks has told so.
    return len(log.of(AttemptStarted)) == before
