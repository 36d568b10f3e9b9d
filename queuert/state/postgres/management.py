"""Management operations: parameters of the statements, and their rows. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from queuert.attributes import attributes_of, pairs_of
from queuert.errors import (
    ChainNotFoundError,
    JobNotFoundError,
    JobNotTriggerableError,
)
from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobStatus
from queuert.run_at import RunAt
from queuert.state.postgres.finishing import CLAIMABLE
from queuert.state.postgres.parameters import Parameters, array, new_job, quoted
from queuert.state.postgres.rows import Row
from queuert.state.types import ChainUpdate, DeleteResult, InputEdit, NewJob, TriggeredJob, WorkerlessCompletion

FAILED_OR_CANCELLED = frozenset({ChainStatus.FAILED, ChainStatus.CANCELLED})
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


def met_chains(rows: Iterable[Row]) -> dict[str, LockedChain]:
    """Decode the rows of ``lock_chains``: the locked chains by id, each with its last job."""
    roots: dict[str, Row] = {}
    tails: dict[str, Row] = {}
    for row in rows:
        id, chain_id, index = row[:3]
        if index == 0:
            roots[id] = row
        if chain_id not in tails or tails[chain_id][2] < index:
            tails[chain_id] = row
    return {id: _locked_chain(root, tails[id]) for id, root in roots.items()}


def _locked_chain(root: Row, tail: Row) -> LockedChain:
    return LockedChain(root[0], root[4], ChainStatus(root[5]), tail[0], tail[3], JobStatus(tail[6]), tail[7])


def all_found(ids: Sequence[str], met: Mapping[str, LockedChain]) -> dict[str, LockedChain]:
    """Return the chains of these ids in their order, each once.

    Raises:
        ChainNotFoundError: a chain does not exist.
    """
    for id in ids:
        if id not in met:
            raise ChainNotFoundError(id)
    return {id: met[id] for id in ids}


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
    rows_by_id = {row[0]: row for row in rows}
    found = {
        id: LockedChain(id, row[1], ChainStatus(row[2]), row[3], row[4], JobStatus(row[5]), row[6])
        for id, row in rows_by_id.items()
    }
    chains = all_found([one.chain_id for one in closing], found).values()
    if not rows[0][7]:
        return [chain.update() for chain in chains]
    results = [chain.update(status=ChainStatus.COMPLETED, seconds=rows_by_id[chain.id][8]) for chain in chains]
    return with_due_types(results, rows[0][9])


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
    seconds = chain_seconds(written)
    results = [
        chain.update(status=ChainStatus.CANCELLED, seconds=seconds.get(chain.id))
        if chain.status is ChainStatus.OPEN
        else chain.update()
        for chain in met
    ]
    return with_released(results, released)


def chain_seconds(written: Sequence[Row]) -> dict[str, float | None]:
    """Return how long each chain took that was closed, from the rows of ``cancel_chains``."""
    return {row[0]: row[1] for row in written}


def with_released(results: list[ChainUpdate], released: Sequence[Row]) -> list[ChainUpdate]:
    """Add the types of the jobs that ``release_dependents`` made due to the last result that was written."""
    return with_due_types(results, sorted({row[0] for row in released if row[1] in CLAIMABLE}))


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
    found = {row[0]: row for row in rows}
    for id in ids:
        if id not in found:
            raise JobNotFoundError(id)
        if found[id][2] not in CLAIMABLE:
            raise JobNotTriggerableError(id, found[id][2])
    return [TriggeredJob(id, found[id][1]) for id in ids]


def deleted(params: Sequence[str], rows: Sequence[Row]) -> DeleteResult:
    """Return the deleted chains from the rows of ``delete``: in the order of the request, then the others."""
    found = {row[1] for row in rows}
    first = [id for id in dict.fromkeys(params) if id in found]
    running = sorted(row[0] for row in rows if row[2] == JobStatus.RUNNING)
    return DeleteResult(first + sorted(found - set(first)), running)


def freed_keys(rows: Iterable[Row]) -> Parameters:
    """Return the parameters of ``delete_keys``, from the rows of ``delete``."""
    keys = sorted({(row[3], row[4]) for row in rows if row[4] is not None})
    return {"types": [type for type, _ in keys], "keys": [key for _, key in keys]}


def attribute_rows(rows: Iterable[Row]) -> Parameters:
    """Return the parameters of ``delete_attributes``, from the rows of ``delete`` and ``prune``."""
    entries = [
        (name, value, row[5], row[0]) for row in rows if row[6] for name, value in pairs_of(attributes_of(row[6]))
    ]
    names, values, started, ids = ([entry[at] for entry in entries] for at in range(4))
    return {"names": names, "values": values, "started": started, "ids": ids}


def for_each(ids: Sequence[str], results: Sequence[ChainUpdate]) -> list[ChainUpdate]:
    """Return the results in the order of the ids; an id that occurs twice gets its result twice."""
    found = {one.chain_id: one for one in results}
    return [found[id] for id in ids]
