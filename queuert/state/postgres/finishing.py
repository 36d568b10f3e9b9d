"""Finishes: which statements a batch needs, what it locks, and its results. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from queuert.attributes import attributes_of
from queuert.jobs import JobStatus
from queuert.state.postgres import parameters
from queuert.state.postgres.bounds import LOCK_SOON, Bounds
from queuert.state.postgres.protocol import COMMIT, Step, text_rows
from queuert.state.postgres.rows import Row
from queuert.state.postgres.statements import Statements
from queuert.state.types import (
    Finish,
    FinishKind,
    FinishResult,
    Lease,
    NewJob,
    StartedJob,
    inheriting,
    last_renewals,
)

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


CLAIMABLE = (JobStatus.READY, JobStatus.SCHEDULED)
"""Statuses of jobs that can be claimed, now or at a known time, so that workers must be notified of them."""


def with_status(started: Mapping[str, StartedJob], status: Mapping[str, str]) -> dict[str, StartedJob]:
    """Return the started jobs with the statuses that their blockers gave them, by id."""
    return {id: replace(job, status=JobStatus(status.get(id, job.status))) for id, job in started.items()}


def releases_dependents(finish: Finish) -> bool:
    """Whether the finish needs more than one statement, as far as the claim knew."""
    if finish.kind is FinishKind.WAIT or finish.waits_for_event or finish.progress is not None:
        return True
    if finish.continuation is not None:
        return bool(finish.continuation.blockers)
    return finish.kind.closes_chain and finish.job.has_dependents


_PLAIN_CHARACTERS = 8 * 1024 * 1024
"""The largest total length of the outputs of simple completions: a JSON object of Postgres is limited to 256 MB."""


def is_simple_completion(finish: Finish) -> bool:
    """Whether the finish is a completion that writes only its own row, as far as the claim knew."""
    job = finish.job
    return (
        finish.kind is FinishKind.COMPLETE
        and job.chain_index == 0
        and not job.has_dependents
        and finish.result_ttl is None
        and finish.progress is None
    )


def is_simple_failure(finish: Finish) -> bool:
    """Whether the finish is a failure that writes only its own row, as far as the claim knew."""
    job = finish.job
    if finish.progress is not None:
        return False
    if finish.kind is FinishKind.RETRY:
        return True
    alone = job.chain_index == 0 and not job.has_dependents and finish.result_ttl is None
    return finish.kind is FinishKind.FAIL and alone


def all_simple_completions(finishes: Sequence[Finish]) -> bool:
    """Whether all finishes are simple completions, so that ``complete`` can write them."""
    length = 0
    for finish in finishes:
        if not is_simple_completion(finish):
            return False
        length += len(finish.output or "")
    return length <= _PLAIN_CHARACTERS


def all_simple(finishes: Sequence[Finish]) -> bool:
    """Whether all finishes are simple completions or failures, so that ``finish_simple`` can write them. Errors are of
    bounded length."""
    simple = all(is_simple_completion(one) or is_simple_failure(one) for one in finishes)
    return simple and sum(len(one.output or "") for one in finishes) <= _PLAIN_CHARACTERS


def completed(finishes: Sequence[Finish], found: Sequence[Row]) -> dict[Lease, FinishResult]:
    """Return the results of the simple completions that were written, from the rows of ``complete``.

    If two completions of one job have different tokens, the statement sees only the last.
    """
    params = {one.job.id: one.job.lease for one in finishes}
    return {params[job_id]: FinishResult(job_id) for (job_id,) in found}


Inherited: TypeAlias = tuple[str | None, str | None]
"""What the chains that a job starts may inherit: its limit key, and the attributes of its chain, as stored."""


def waiting_jobs(finishes: Sequence[Finish]) -> list[NewJob]:
    """Return the jobs that get blockers: continuations, and jobs that wait for chains."""
    found = []
    for one in finishes:
        if one.continuation is not None and one.continuation.blockers:
            found.append(one.continuation)
        elif one.kind is FinishKind.WAIT:
            found.append(NewJob(one.job.id, one.job.type, one.job.input, blockers=one.blockers))
    return found


def started_by(finishes: Sequence[Finish], inherited: Mapping[str, Inherited] | None = None) -> list[NewJob]:
    """Return the first jobs of the chains that finishes start as blockers of their jobs.

    ``inherited`` has what ``read_inherited`` has read, by the ids of the finished jobs.
    """
    if not inherited:
        return [new for one in finishes for new in one.starts]
    return [_inheriting(new, *inherited[one.job.id]) for one in finishes for new in one.starts]


def _inheriting(new: NewJob, limit_key: str | None, attributes: str | None) -> NewJob:
    return inheriting(new, limit_key, attributes_of(attributes) if attributes else None)


def closing_chains(finishes: Sequence[Finish]) -> list[str]:
    """Return the ids of the chains that the finishes close."""
    return sorted({one.job.chain_id for one in finishes if one.kind.closes_chain})


def finish_results(
    finishes: Sequence[Finish], found: Sequence[Row], released: Sequence[str] = (), blocked: Container[str] = ()
) -> dict[Lease, FinishResult]:
    """Return the results of the finishes that were written, from the rows of ``finish`` or ``finish_simple``.

    ``released`` are the types of other jobs that became due by them, ``blocked`` the ids of jobs with open blockers.
    """
    written: dict[Lease, str] = {}
    ages: dict[Lease, float] = {}
    for job_id, token, status, *took in found:
        lease = Lease(job_id, token)
        written[lease] = status
        # How long the chain took, if a job after its first has closed it: ``finish_simple`` closes no such chain.
        (seconds,) = took or (None,)
        if seconds is not None:
            ages[lease] = float(seconds)
    results = {}
    for one in finishes:
        lease = one.job.lease
        if lease in written:
            due_types = _due_types(one, written[lease], blocked)
            results[lease] = FinishResult(lease.job_id, due_types=due_types, chain_seconds=ages.get(lease))
    if results and released:
        last = next(reversed(results))
        due_types = (*results[last].due_types, *sorted(set(released)))
        results[last] = replace(results[last], due_types=due_types)
    return results


def written_leases(found: Sequence[Row]) -> dict[Lease, str]:
    """Return the leases whose finishes were written, with the new status of their jobs, from the rows of ``finish``."""
    return {Lease(job_id, token): status for job_id, token, status, _ in found}


def _due_types(finish: Finish, status: str, blocked: Container[str]) -> tuple[str, ...]:
    if finish.continuation is not None:
        return () if finish.continuation.id in blocked else (finish.continuation.type,)
    return (finish.job.type,) if status in CLAIMABLE and finish.job.id not in blocked else ()


def closes_only(finishes: Sequence[Finish]) -> bool:
    """Whether the statements of these finishes do not depend on each other's results: none waits for other chains or an
    event."""
    return not waiting_jobs(finishes) and not started_by(finishes) and not receivers(finishes)


def receivers(finishes: Sequence[Finish]) -> list[str]:
    """Return the ids of the jobs that wait for an event."""
    return [one.job.id for one in finishes if one.waits_for_event]


def parted_by_progress(finishes: Sequence[Finish]) -> list[list[Finish]]:
    """Return the finishes without a last progress, and those with one, which lock their rows first.

    The others would wait for these locks, and take the longer way.
    """
    parts = [one for one in finishes if one.progress is None], [one for one in finishes if one.progress is not None]
    return [part for part in parts if part]


def progress_steps(sql: Statements, finishes: Sequence[Finish]) -> list[Step]:
    """Return the step that writes the last progress of attempts, once their rows are locked; none if there is none."""
    renewals = last_renewals(finishes)
    return [Step(sql.prepared["renew_with_events"], parameters.renewals(renewals))] if renewals else []


def closing_steps(sql: Statements, finishes: Sequence[Finish], bounds: Bounds, *, wait: bool) -> list[Step]:
    """Return the steps after BEGIN: lock chains and dependents, write the last progress and the finishes, release the
    dependents, commit."""
    closing = closing_chains(finishes)
    held = {one.job.id for one in finishes}.union(closing)
    return [
        Step(sql.prepared["set_short_lock_timeout"], bounds.parameters(None if wait else LOCK_SOON)),
        Step(sql.prepared["lock_in_order"], parameters.locks(held, closing=closing)),
        *progress_steps(sql, finishes),
        Step(sql.prepared["finish"], parameters.finish(finishes, closes_awaited=True)),
        Step(sql.prepared["release_dependents"], parameters.closed_chains(closing)),
        Step(COMMIT, {}),
    ]


def closing_results(finishes: Sequence[Finish], answers: Sequence[PGresult]) -> dict[Lease, FinishResult]:
    """Return the results of the finishes that were written, from the results of all steps."""
    *_, ended, released, _ = answers
    freed = [type for type, status in text_rows(released) if type is not None and status in CLAIMABLE]
    return finish_results(finishes, text_rows(ended), freed)
