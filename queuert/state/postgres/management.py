"""Management operations: parameters of the statements, and their rows. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

from queuert.attributes import attributes_of, pairs_of
from queuert.errors import (
    ChainNotFoundError,
    ChainNotRetriableError,
    JobNotFoundError,
    JobNotTriggerableError,
)
from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobStatus
from queuert.run_at import RunAt
from queuert.state.postgres.bounds import milliseconds
from queuert.state.postgres.finishing import CLAIMABLE
from queuert.state.postgres.parameters import Parameters, array, new_job, quoted
from queuert.state.postgres.rows import CompletedChain, DeletedJob, LockedJob, Row
from queuert.state.types import ChainUpdate, DeleteResult, InputEdit, NewJob, TriggeredJob, WorkerlessCompletion

_FAILED_OR_CANCELLED = frozenset({ChainStatus.FAILED, ChainStatus.CANCELLED})
"""The statuses of chains that can be retried."""


WAITING = frozenset({JobStatus.BLOCKED, JobStatus.SCHEDULED, JobStatus.READY})
"""The statuses of jobs whose due time and priority can be changed."""


@dataclass(frozen=True, slots=True)
class LockedChain:
    """The state of a chain under its lock, with its last job."""

    id: str
    type: str
    status: ChainStatus
    tail_id: str
    tail_type: str
    tail_status: JobStatus
    trace_context: str | None

    def update(
        self, *, status: ChainStatus | None = None, due_types: tuple[str, ...] = (), seconds: float | None = None
    ) -> ChainUpdate:
        """Return the result of the operation for this chain: written if ``status`` is given, otherwise unchanged.

        ``seconds`` is how long the chain took, if the operation closed it.
        """
        return ChainUpdate(
            chain_id=self.id,
            chain_type=self.type,
            status=self.status if status is None else status,
            job_id=self.tail_id,
            job_type=self.tail_type,
            previous_status=self.tail_status,
            written=status is not None,
            due_types=due_types,
            chain_seconds=seconds,
            trace_context=self.trace_context,
        )


def met_chains(locked: Iterable[LockedJob]) -> dict[str, LockedChain]:
    """Return the locked chains by id, each with its last job."""
    roots: dict[str, LockedJob] = {}
    tails: dict[str, LockedJob] = {}
    for job in locked:
        if job.chain_index == 0:
            roots[job.id] = job
        if job.chain_id not in tails or tails[job.chain_id].chain_index < job.chain_index:
            tails[job.chain_id] = job
    return {id: _locked_chain(root, tails[id]) for id, root in roots.items()}


def _locked_chain(root: LockedJob, tail: LockedJob) -> LockedChain:
    assert root.chain_status is not None
    return LockedChain(
        id=root.id,
        type=root.chain_type,
        status=ChainStatus(root.chain_status),
        tail_id=tail.id,
        tail_type=tail.type,
        tail_status=JobStatus(tail.status),
        trace_context=tail.trace_context,
    )


def all_found(ids: Sequence[str], met: Mapping[str, LockedChain]) -> dict[str, LockedChain]:
    """Return the chains of these ids in their order, each once.

    Raises:
        ChainNotFoundError: a chain does not exist.
    """
    if missing := [id for id in ids if id not in met]:
        raise ChainNotFoundError(missing[0], ids=missing)
    return {id: met[id] for id in ids}


def check_retriable(met: Iterable[LockedChain]) -> None:
    """Check that the chains have failed or were cancelled.

    Raises:
        ChainNotRetriableError: some are open or completed; it names them all.
    """
    refused = {chain.id: chain.status for chain in met if chain.status not in _FAILED_OR_CANCELLED}
    if refused:
        [(id, status), *_] = refused.items()
        raise ChainNotRetriableError(id, status, chain_ids=refused)


def lock_timeout(seconds: float | None) -> int | None:
    """Return a lock timeout in milliseconds; None for that of the login."""
    return None if seconds is None else int(milliseconds(seconds))


def completion_blockers(completions: Sequence[WorkerlessCompletion]) -> list[NewJob]:
    """Return the continuations that have blockers."""
    following = (one.continuation for one in completions)
    return [job for job in following if job is not None and job.blockers]


def can_complete(completion: WorkerlessCompletion, chain: LockedChain) -> bool:
    """Whether the chain is open, and its last job is still the one that the caller read."""
    return chain.status is ChainStatus.OPEN and chain.tail_id == completion.tail_id


def completions(closing: Sequence[WorkerlessCompletion]) -> Parameters:
    """Return the parameters of ``complete_chains``."""
    rows = (
        f'{{"chain_id":{quoted(one.chain_id)},"tail_id":{quoted(one.tail_id)},"output":{one.output or "null"}}}'
        for one in closing
    )
    return {"completions": array(rows)}


def completed(closing: Sequence[WorkerlessCompletion], rows: Sequence[Row]) -> list[ChainUpdate]:
    """Return the results of completions, from the rows of ``complete_chains``.

    Raises:
        ChainNotFoundError: a chain does not exist. Nothing was written.
    """
    met = list(starmap(CompletedChain, rows))
    found = {one.chain_id: _before(one) for one in met}
    chains = all_found([one.chain_id for one in closing], found).values()
    if not met[0].completed:
        return [chain.update() for chain in chains]
    seconds = {one.chain_id: one.seconds for one in met}
    results = [chain.update(status=ChainStatus.COMPLETED, seconds=seconds[chain.id]) for chain in chains]
    return with_due_types(results, met[0].due_types)


def _before(one: CompletedChain) -> LockedChain:
    return LockedChain(
        id=one.chain_id,
        type=one.chain_type,
        status=ChainStatus(one.chain_status),
        tail_id=one.tail_id,
        tail_type=one.tail_type,
        tail_status=JobStatus(one.tail_status),
        trace_context=one.trace_context,
    )


def continuations(completions: Sequence[WorkerlessCompletion]) -> Parameters:
    """Return the parameters of ``continue_chains``, of those that have a continuation."""
    following = [(one, one.continuation) for one in completions if one.continuation is not None]
    rows = (
        f'{{"id":{quoted(one.tail_id)},"next_id":{quoted(job.id)},"output":{one.output or "null"}}}'
        for one, job in following
    )
    return {"continued": array(rows), "continuations": array(new_job(job) for _, job in following)}


def continued(
    completions: Sequence[WorkerlessCompletion], met: Mapping[str, LockedChain], blocked: frozenset[str]
) -> list[ChainUpdate]:
    """Return the results of those completions that have a continuation; ``blocked`` are the ids of continuations with
    open blockers."""
    following = [(one.chain_id, one.continuation) for one in completions if one.continuation is not None]
    return [
        met[chain_id].update(status=ChainStatus.OPEN, due_types=() if job.id in blocked else (job.type,))
        for chain_id, job in following
    ]


def cancelled(met: Iterable[LockedChain], written: Sequence[Row], released: Sequence[Row]) -> list[ChainUpdate]:
    """Return the results of cancellations, from the rows of ``cancel_chains``; chains that were closed are
    unchanged."""
    seconds: dict[str, float | None] = dict(written)
    results = [
        chain.update(status=ChainStatus.CANCELLED, seconds=seconds.get(chain.id))
        if chain.status is ChainStatus.OPEN
        else chain.update()
        for chain in met
    ]
    return with_released(results, released)


def with_released(results: list[ChainUpdate], released: Sequence[Row]) -> list[ChainUpdate]:
    """Add the types of the jobs that ``release_dependents`` made due to the last result that was written."""
    return with_due_types(results, sorted({type for type, status in released if status in CLAIMABLE}))


def with_due_types(results: list[ChainUpdate], due_types: Sequence[str]) -> list[ChainUpdate]:
    """Add types of jobs that are due to the last result that was written."""
    if due_types:
        last = max(index for index, one in enumerate(results) if one.written)
        results[last] = replace(results[last], due_types=(*results[last].due_types, *due_types))
    return results


def changes(run_at: RunAt | None, priority: int | None, edit: InputEdit | None) -> Parameters:
    """Return the parameters of ``change_jobs``, except the jobs."""
    kind = EventKind.REPRIORITIZED if run_at is None else EventKind.RESCHEDULED
    return {
        "at": None if run_at is None else run_at.moment,
        "delay": None if run_at is None or run_at.moment is not None else run_at.delay or 0.0,
        "priority": priority,
        "kind": kind if edit is None else EventKind.EDITED,
    }


def changed(chain: LockedChain) -> ChainUpdate:
    """Return the result of a chain whose last job was changed. It may be due earlier than workers expect."""
    due_types = () if chain.tail_status is JobStatus.BLOCKED else (chain.tail_type,)
    return chain.update(status=chain.status, due_types=due_types)


def triggered(ids: Sequence[str], rows: Sequence[Row]) -> list[TriggeredJob]:
    """Return the jobs to trigger, from the rows of ``lock_jobs``, in the order of the ids.

    Raises:
        JobNotFoundError: a job does not exist.
        JobNotTriggerableError: a job is neither scheduled nor ready.
    """
    found = {id: (TriggeredJob(id, type), status) for id, type, status in rows}
    jobs = []
    for id in ids:
        if id not in found:
            raise JobNotFoundError(id)
        job, status = found[id]
        if status not in CLAIMABLE:
            raise JobNotTriggerableError(id, status)
        jobs.append(job)
    return jobs


def deleted(params: Sequence[str], jobs: Sequence[DeletedJob]) -> DeleteResult:
    """Return the deleted chains: in the order of the request, then the others."""
    found = {job.chain_id for job in jobs}
    first = [id for id in dict.fromkeys(params) if id in found]
    running = sorted(job.id for job in jobs if job.status == JobStatus.RUNNING)
    return DeleteResult(first + sorted(found - set(first)), running)


def freed_keys(jobs: Iterable[DeletedJob]) -> Parameters:
    """Return the parameters of ``delete_keys``."""
    keys = sorted({(job.type, job.deduplication_key) for job in jobs if job.deduplication_key is not None})
    return {"types": [type for type, _ in keys], "keys": [key for _, key in keys]}


def attribute_rows(jobs: Iterable[DeletedJob]) -> Parameters:
    """Return the parameters of ``delete_attributes``."""
    entries = [
        (name, value, job.created_at, job.id)
        for job in jobs
        if job.attributes
        for name, value in pairs_of(attributes_of(job.attributes))
    ]
    names, values, started, ids = ([entry[at] for entry in entries] for at in range(4))
    return {"names": names, "values": values, "started": started, "ids": ids}


def for_each(ids: Sequence[str], results: Sequence[ChainUpdate]) -> list[ChainUpdate]:
    """Return the results in the order of the ids; an id that occurs twice gets its result twice."""
    found = {one.chain_id: one for one in results}
    return [found[id] for id in ids]
