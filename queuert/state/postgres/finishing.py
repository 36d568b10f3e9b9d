"""What a batch of finishes touches and what came of it: pure functions."""

from __future__ import annotations

from collections.abc import Container, Sequence

from queuert.jobs import JobStatus
from queuert.state.adapter import Finish, FinishResult, Lease, NewJob, StartedJob
from queuert.state.postgres.rows import Row


def needs_transaction(jobs: Sequence[NewJob], *, callers: bool = False) -> bool:
    """Whether starting these jobs takes more than one statement, or must not spoil the caller's transaction."""
    return any(job.blockers or (callers and job.id_chosen) for job in jobs)


def with_status(started: Sequence[StartedJob], status: dict[str, str]) -> list[StartedJob]:
    """Started jobs, with the status that their blockers gave them."""
    return [
        StartedJob(job.id, job.type, JobStatus(status[job.id]), job.created_at) if job.id in status else job
        for job in started
    ]


def releases_dependents(finish: Finish) -> bool:
    """Whether this ending is known to need more than the one statement."""
    if finish.continuation is not None:
        return bool(finish.continuation.blockers)
    return finish.kind.closes_chain and finish.job.has_dependents


def continuations_with_blockers(finishes: Sequence[Finish]) -> list[NewJob]:
    """The continuations that must wait for chains."""
    return [one.continuation for one in finishes if one.continuation is not None and one.continuation.blockers]


def closing_chains(finishes: Sequence[Finish]) -> list[str]:
    """The chains that these endings close."""
    return sorted({one.job.chain_id for one in finishes if one.kind.closes_chain})


def finish_results(
    finishes: Sequence[Finish], found: Sequence[Row], released: Sequence[str] = (), blocked: Container[str] = ()
) -> dict[Lease, FinishResult]:
    """The results of the endings that were written, from the rows of ``finish``.

    ``released`` are the types of the jobs that became due by them, ``blocked`` the continuations that must wait.
    """
    written = written_leases(found)
    results = {}
    for one in finishes:
        lease = one.job.lease
        if lease in written:
            results[lease] = FinishResult(lease.job_id, readied=_readied(one, written[lease], blocked))
    if results and released:
        last = next(reversed(results))
        results[last] = FinishResult(last.job_id, readied=(*results[last].readied, *sorted(set(released))))
    return results


def written_leases(found: Sequence[Row]) -> dict[Lease, str]:
    """The leases whose endings were written, from the rows of ``finish``, with the status that their jobs have now."""
    return {Lease(row[0], row[1]): row[2] for row in found}


def _readied(finish: Finish, status: str, blocked: Container[str]) -> tuple[str, ...]:
    if finish.continuation is not None:
        return () if finish.continuation.id in blocked else (finish.continuation.type,)
    return (finish.job.type,) if status in (JobStatus.READY, JobStatus.SCHEDULED) else ()
