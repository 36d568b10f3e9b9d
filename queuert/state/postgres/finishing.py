"""Finishes: which statements a batch needs, what it touches, and its results. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from queuert.jobs import JobStatus
from queuert.state.postgres import parameters
from queuert.state.postgres.bounds import LOCK_SOON, Bounds
from queuert.state.postgres.protocol import COMMIT, Step, text_rows
from queuert.state.postgres.rows import Row
from queuert.state.postgres.statements import Statements
from queuert.state.types import Finish, FinishKind, FinishResult, Lease, NewJob, StartedJob

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


DUE = (JobStatus.READY, JobStatus.SCHEDULED)
"""What a job is that somebody should hear of: it can be claimed, or has a time."""


def with_status(started: Mapping[str, StartedJob], status: Mapping[str, str]) -> dict[str, StartedJob]:
    """Started jobs by id, with the status that their blockers gave them."""
    return {id: replace(job, status=JobStatus(status.get(id, job.status))) for id, job in started.items()}


def releases_dependents(finish: Finish) -> bool:
    """Whether this finish is known to need more than the one statement."""
    if finish.kind is FinishKind.WAIT:
        return True
    if finish.continuation is not None:
        return bool(finish.continuation.blockers)
    return finish.kind.closes_chain and finish.job.has_dependents


_PLAIN_CHARACTERS = 8 * 1024 * 1024
"""What the outputs of plain completions may be long together: a JSON object of Postgres has a limit of 256 MB."""


def is_simple_completion(finish: Finish) -> bool:
    """Whether this finish is a completion that needs nothing but its own row, as far as the claim knew."""
    job = finish.job
    return (
        finish.kind is FinishKind.COMPLETE
        and job.chain_index == 0
        and not job.has_dependents
        and finish.result_ttl is None
    )


def is_simple_failure(finish: Finish) -> bool:
    """Whether this finish is a failure that needs nothing but its own row, as far as the claim knew."""
    job = finish.job
    if finish.kind is FinishKind.RETRY:
        return True
    alone = job.chain_index == 0 and not job.has_dependents and finish.result_ttl is None
    return finish.kind is FinishKind.FAIL and alone


def all_simple_completions(finishes: Sequence[Finish]) -> bool:
    """Whether the leanest statement will do for all of these: nothing but completions."""
    length = 0
    for finish in finishes:
        if not is_simple_completion(finish):
            return False
        length += len(finish.output or "")
    return length <= _PLAIN_CHARACTERS


def all_simple(finishes: Sequence[Finish]) -> bool:
    """Whether the lean statement will do that knows failures as well. Their errors are of bounded length."""
    simple = all(is_simple_completion(one) or is_simple_failure(one) for one in finishes)
    return simple and sum(len(one.output or "") for one in finishes) <= _PLAIN_CHARACTERS


def completed(finishes: Sequence[Finish], found: Sequence[Row]) -> dict[Lease, FinishResult]:
    """The results of the plain completions that were written, from the rows of ``complete``.

    Of two that name one job, with different tokens, the statement sees the last.
    """
    params = {one.job.id: one.job.lease for one in finishes}
    return {params[row[0]]: FinishResult(row[0]) for row in found}


def waiting_jobs(finishes: Sequence[Finish]) -> list[NewJob]:
    """The jobs that must wait for chains: continuations, and those that wait again."""
    found = []
    for one in finishes:
        if one.continuation is not None and one.continuation.blockers:
            found.append(one.continuation)
        elif one.kind is FinishKind.WAIT:
            found.append(NewJob(one.job.id, one.job.type, one.job.input, blockers=one.blockers))
    return found


def started_by(finishes: Sequence[Finish]) -> list[NewJob]:
    """The chains that finishes start, for their jobs to wait for."""
    return [new for one in finishes for new in one.starts]


def closing_chains(finishes: Sequence[Finish]) -> list[str]:
    """The chains that these finishes close."""
    return sorted({one.job.chain_id for one in finishes if one.kind.closes_chain})


def finish_results(
    finishes: Sequence[Finish], found: Sequence[Row], released: Sequence[str] = (), blocked: Container[str] = ()
) -> dict[Lease, FinishResult]:
    """The results of the finishes that were written, from the rows of ``finish``.

    ``released`` are the types of other jobs that became due by them, ``blocked`` the jobs that must wait.
    """
    written = written_leases(found)
    results = {}
    for one in finishes:
        lease = one.job.lease
        if lease in written:
            results[lease] = FinishResult(lease.job_id, due_types=_due_types(one, written[lease], blocked))
    if results and released:
        last = next(reversed(results))
        results[last] = FinishResult(last.job_id, due_types=(*results[last].due_types, *sorted(set(released))))
    return results


def written_leases(found: Sequence[Row]) -> dict[Lease, str]:
    """The leases whose finishes were written, from the rows of ``finish``, with the status that their jobs have now."""
    return {Lease(row[0], row[1]): row[2] for row in found}


def _due_types(finish: Finish, status: str, blocked: Container[str]) -> tuple[str, ...]:
    if finish.continuation is not None:
        return () if finish.continuation.id in blocked else (finish.continuation.type,)
    return (finish.job.type,) if status in DUE and finish.job.id not in blocked else ()


def closes_only(finishes: Sequence[Finish]) -> bool:
    """Whether no step of these finishes hangs on what the one before it has found: none waits for other chains."""
    return not waiting_jobs(finishes) and not started_by(finishes)


def closing_steps(sql: Statements, finishes: Sequence[Finish], bounds: Bounds, *, wait: bool) -> list[Step]:
    """After BEGIN: lock the chains and who waits for them, write the finishes, release who waited, and commit."""
    closing = closing_chains(finishes)
    held = {one.job.id for one in finishes}.union(closing)
    return [
        Step(sql.prepared["set_short_lock_timeout"], bounds.parameters(None if wait else LOCK_SOON)),
        Step(sql.prepared["lock_in_order"], parameters.locks(held, closing=closing)),
        Step(sql.prepared["finish"], parameters.finish(finishes, closes_awaited=True)),
        Step(sql.prepared["unblock"], parameters.closed_chains(closing)),
        Step(COMMIT, {}),
    ]


def closing_results(finishes: Sequence[Finish], answers: Sequence[PGresult]) -> dict[Lease, FinishResult]:
    """What came of the finishes that were written, from the answers to all steps."""
    *_, ended, released, _ = answers
    freed = [row[0] for row in text_rows(released) if row[0] is not None and row[1] in DUE]
    return finish_results(finishes, text_rows(ended), freed)
