"""Parameters and rows of the statements that intervene from outside: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from queuert.attributes import attributes_of, pairs_of
from queuert.errors import (
    ChainNotFoundError,
    JobNotFoundError,
    JobNotTriggerableError,
)
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.postgres.finishing import DUE
from queuert.state.postgres.parameters import Parameters, array, new_job, quoted
from queuert.state.postgres.rows import Row
from queuert.state.types import ChainUpdate, DeleteResult, NewJob, TriggeredJob, WorkerlessCompletion

FAILED_OR_CANCELLED = frozenset({ChainStatus.FAILED, ChainStatus.CANCELLED})
"""How a chain stands that can be retried."""


@dataclass(frozen=True, slots=True)
class LockedChain:
    """A chain as it stands under its lock."""

    id: str
    type: str
    status: ChainStatus
    tail_id: str
    tail_type: str
    tail_status: JobStatus

    def update(self, *, status: ChainStatus | None = None, due_types: tuple[str, ...] = ()) -> ChainUpdate:
        """The result of it: written, if it has a new status or has gone on; ``status`` None says that nothing was."""
        return ChainUpdate(
            chain_id=self.id,
            chain_type=self.type,
            status=self.status if status is None else status,
            job_id=self.tail_id,
            job_type=self.tail_type,
            met=self.tail_status,
            written=status is not None,
            due_types=due_types,
        )


def met_chains(rows: Iterable[Row]) -> dict[str, LockedChain]:
    """The chains among the rows of ``lock_chains``, each with the last job that was locked with it."""
    roots: dict[str, Row] = {}
    tails: dict[str, Row] = {}
    for row in rows:
        id, chain_id, index = row[:3]
        if index == 0:
            roots[id] = row
        if chain_id not in tails or tails[chain_id][2] < index:
            tails[chain_id] = row
    return {
        id: LockedChain(id, root[4], ChainStatus(root[5]), tails[id][0], tails[id][3], JobStatus(tails[id][6]))
        for id, root in roots.items()
    }


def all_found(ids: Sequence[str], met: Mapping[str, LockedChain]) -> dict[str, LockedChain]:
    """The chains of these ids, in this order, each once.

    Raises:
        ChainNotFoundError: one of them is not among those that were met.
    """
    for id in ids:
        if id not in met:
            raise ChainNotFoundError(id)
    return {id: met[id] for id in ids}


def completion_blockers(completions: Sequence[WorkerlessCompletion]) -> list[NewJob]:
    """The continuations that are to wait for chains."""
    following = (one.continuation for one in completions)
    return [job for job in following if job is not None and job.blockers]


def can_complete(completion: WorkerlessCompletion, chain: LockedChain) -> bool:
    """Whether the chain is open, and still at the job that the caller saw."""
    return chain.status is ChainStatus.OPEN and chain.tail_id == completion.tail_id


def completions(params: Sequence[WorkerlessCompletion]) -> Parameters:
    """Parameters of ``complete_outside``."""
    rows = (
        f'{{"id":{quoted(one.tail_id)},"output":{one.output or "null"},'
        f'"next_id":{quoted(one.continuation.id if one.continuation else None)}}}'
        for one in params
    )
    following = (new_job(one.continuation) for one in params if one.continuation is not None)
    return {"completions": array(rows), "continuations": array(following)}


def completed(
    params: Sequence[WorkerlessCompletion],
    met: Mapping[str, LockedChain],
    blocked: frozenset[str],
    released: Sequence[Row],
) -> list[ChainUpdate]:
    """The results of completions that were written; ``blocked`` are the continuations that must wait."""
    results = []
    for one in params:
        following = one.continuation
        due_types = (following.type,) if following is not None and following.id not in blocked else ()
        status = ChainStatus.COMPLETED if following is None else ChainStatus.OPEN
        results.append(met[one.chain_id].update(status=status, due_types=due_types))
    return with_released(results, released)


def with_released(results: list[ChainUpdate], released: Sequence[Row]) -> list[ChainUpdate]:
    """The same, and the last one that was written names the types of the jobs that ``unblock`` made due."""
    types = tuple(sorted({row[0] for row in released if row[1] in DUE}))
    if types:
        last = max(place for place, one in enumerate(results) if one.written)
        results[last] = replace(results[last], due_types=results[last].due_types + types)
    return results


def triggered(ids: Sequence[str], rows: Sequence[Row]) -> list[TriggeredJob]:
    """The jobs that can be triggered, from the rows of ``lock_jobs``, in the order asked.

    Raises:
        JobNotFoundError: one of them is not there.
        JobNotTriggerableError: one of them neither is scheduled nor ready.
    """
    found = {row[0]: row for row in rows}
    for id in ids:
        if id not in found:
            raise JobNotFoundError(id)
        if found[id][2] not in DUE:
            raise JobNotTriggerableError(id, found[id][2])
    return [TriggeredJob(id, found[id][1]) for id in ids]


def deleted(params: Sequence[str], rows: Sequence[Row]) -> DeleteResult:
    """The rows of ``delete``, chains in the order asked, and then the others."""
    found = {row[1] for row in rows}
    first = [id for id in dict.fromkeys(params) if id in found]
    running = sorted(row[0] for row in rows if row[2] == JobStatus.RUNNING)
    return DeleteResult(first + sorted(found - set(first)), running)


def freed_keys(rows: Iterable[Row]) -> Parameters:
    """Parameters of ``delete_keys``, from the rows of ``delete``."""
    keys = sorted({(row[3], row[4]) for row in rows if row[4] is not None})
    return {"types": [type for type, _ in keys], "keys": [key for _, key in keys]}


def attribute_rows(rows: Iterable[Row]) -> Parameters:
    """Parameters of ``delete_attributes``, from the rows of ``delete`` and ``prune``."""
    entries = [
        (name, value, row[5], row[0]) for row in rows if row[6] for name, value in pairs_of(attributes_of(row[6]))
    ]
    names, values, started, ids = ([entry[at] for entry in entries] for at in range(4))
    return {"names": names, "values": values, "started": started, "ids": ids}


def for_each(ids: Sequence[str], results: Sequence[ChainUpdate]) -> list[ChainUpdate]:
    """The results in the order asked, one that was asked for twice also twice."""
    found = {one.chain_id: one for one in results}
    return [found[id] for id in ids]
