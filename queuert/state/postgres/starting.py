"""Starts: which of them are duplicates, and which statements write the others. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from queuert.errors import ChainNotFoundError, JobIdConflictError, JobTypeMismatchError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.postgres import parameters
from queuert.state.postgres.parameters import Parameters, array, is_large, quoted
from queuert.state.postgres.protocol import NamedStatement
from queuert.state.postgres.rows import ExistingJob, Row
from queuert.state.postgres.statements import Statements
from queuert.state.types import NewJob, StartedJob, is_debounced, with_newest_inputs


def insertions(
    sql: Statements, statement: bytes, jobs: Sequence[NewJob], *, awaited: bool = False, before: int = 0
) -> Iterator[tuple[bytes | NamedStatement, parameters.Parameters]]:
    """Yield the statements that write these jobs, with their parameters. ``statement`` is ``start_jobs`` or
    ``start_if_absent``; the faster ``start_uniform`` or ``start_one`` replaces the former if it can.

    ``awaited`` says that another job will wait for their chains; ``before`` is the number of jobs of the same call in
    earlier statements.
    """
    if not jobs:
        return
    plain = parameters.plain_start(jobs, awaited=awaited, before=before) if statement is sql.start_jobs else None
    if plain is not None:
        yield (sql.prepared["start_uniform"] if len(jobs) > 1 else sql.prepared["start_one"]), plain
        return
    if any(job.attributes for job in jobs):
        plainly = statement is sql.start_jobs
        statement = sql.start_jobs_with_attributes if plainly else sql.start_if_absent_with_attributes
    for chunk in parameters.start_chunks(jobs, awaited=awaited, before=before):
        yield statement, chunk


_STATUSES = {status.value: status for status in JobStatus}
"""A dict lookup takes a third of the time of a call of the enumeration."""


def started_jobs(found: Iterable[Row]) -> dict[str, StartedJob]:
    """Decode rows of ``start_jobs``, by id."""
    return {id: StartedJob(id, type, _STATUSES[status], created_at) for id, type, status, created_at in found}


DeduplicationKey = tuple[str, str]
"""The job type and the key that a start is deduplicated by."""


def deduplication_key_of(job: NewJob) -> DeduplicationKey | None:
    """Return the deduplication key of a start, with its type."""
    return None if job.deduplication is None else (job.type, job.deduplication.key)


def needs_transaction(jobs: Sequence[NewJob], *, callers: bool = False) -> bool:
    """Whether the start of these jobs needs a transaction or, on a caller's connection, a savepoint."""
    for job in jobs:
        if job.blockers or job.deduplication or job.attach or (callers and job.id_chosen):
            return True
    return is_large(jobs)


def reject_batch_blockers(jobs: Iterable[NewJob], written: Container[str]) -> None:
    """Reject jobs whose blockers are in their own batch: these did not exist when the batch was made.

    Raises:
        ChainNotFoundError: a job has such a blocker.
    """
    for job in jobs:
        for chain_id in job.blockers:
            if chain_id in written:
                raise ChainNotFoundError(chain_id)


@dataclass(slots=True)
class StartBatch:
    """A batch of starts, and the result of each start that is known: written, or a duplicate of a chain."""

    jobs: Sequence[NewJob]
    first: dict[DeduplicationKey, int] = field(default_factory=dict)
    """The first start of each key, by its index. Later starts of the key get the same chain."""
    results_by_index: dict[int, StartedJob] = field(default_factory=dict)
    """The results, by index in the batch."""

    def __post_init__(self) -> None:
        self.jobs = with_newest_inputs(self.jobs)
        for index, job in enumerate(self.jobs):
            key = deduplication_key_of(job)
            if key is not None:
                self.first.setdefault(key, index)

    @property
    def deduplication_keys(self) -> Parameters:
        """The parameters of ``lock_deduplication_keys``."""
        ordered = sorted(self.first)
        return {"types": [type for type, _ in ordered], "keys": [key for _, key in ordered]}

    @property
    def keys(self) -> Parameters:
        """The parameters of ``find_duplicates``."""
        deciding = self.first.values()
        return {
            "keys": array(_key_row(index, self.jobs[index]) for index in deciding if not is_debounced(self.jobs[index]))
        }

    def debounces(self) -> Iterator[Parameters]:
        """Yield the parameters of ``debounce``, in as few statements as the size allows; none without such starts."""
        deciding = ((index, self.jobs[index]) for index in self.first.values())
        rows = (_debounce_row(index, job) for index, job in deciding if is_debounced(job))
        for chunk in parameters.chunks(rows):
            yield {"starts": array(chunk)}

    def record_debounced(self, rows: Iterable[Row]) -> None:
        """Record the jobs that ``debounce`` pushed back."""
        for index, id, type, status, created_at in rows:
            self.results_by_index[index] = StartedJob(
                id, type, JobStatus(status), created_at, existing=True, debounced=True
            )

    def record_duplicates(self, rows: Iterable[Row]) -> None:
        """Record the chains that ``find_duplicates`` found."""
        for index, id, type, status, created_at, chain_status in rows:
            self.results_by_index[index] = StartedJob(
                id, type, JobStatus(status), created_at, existing=True, chain_status=ChainStatus(chain_status)
            )

    def record_existing(self, found: Iterable[ExistingJob]) -> None:
        """Record the chains that ``find_chains_by_id`` found for starts with ``attach``.

        Raises:
            JobIdConflictError: an id belongs to a job inside a chain, or to an expired chain that cannot be deleted.
            JobTypeMismatchError: a chain is of another type.
        """
        jobs_by_id = {one.id: one for one in found}
        for index, job in self._open():
            one = jobs_by_id.get(job.id)
            if one is None or not job.attach:
                continue
            if one.chain_index != 0 or one.has_expired:
                raise JobIdConflictError([job.id])
            assert one.chain_status is not None
            status, chain_status = JobStatus(one.status), ChainStatus(one.chain_status)
            self._attach(index, StartedJob(one.id, one.type, status, one.created_at, chain_status=chain_status))

    def remaining(self) -> list[NewJob]:
        """Return the starts that must be written, as far as is known: without duplicates within the batch.

        Raises:
            JobIdConflictError: a start without ``attach`` has the id of an earlier start of the batch.
        """
        remaining: dict[str, NewJob] = {}
        for _, job in self._open():
            if job.id in remaining and not job.attach:
                raise JobIdConflictError([job.id])
            remaining.setdefault(job.id, job)
        return list(remaining.values())

    def record_written(self, started: Mapping[str, StartedJob]) -> None:
        """Record the starts that were written, by id. A later start with the same id attaches to that chain.

        Raises:
            JobTypeMismatchError: the later start is of another type.
        """
        first: set[str] = set()
        for index, job in self._open():
            if job.id in first:
                self._attach(index, started[job.id])
            elif job.id in started:
                self.results_by_index[index] = started[job.id]
                first.add(job.id)

    def _open(self) -> list[tuple[int, NewJob]]:
        """Return the starts without a result, except those that have the key of an earlier start."""
        return [
            (index, job)
            for index, job in enumerate(self.jobs)
            if index not in self.results_by_index and self._deciding_index(index, job) == index
        ]

    def _deciding_index(self, index: int, job: NewJob) -> int:
        key = deduplication_key_of(job)
        return index if key is None else self.first[key]

    def _attach(self, index: int, existing: StartedJob) -> None:
        job = self.jobs[index]
        if existing.type != job.type:
            raise JobTypeMismatchError(job.id, job.type, existing.type)
        self.results_by_index[index] = replace(existing, existing=True)

    def results(self) -> list[StartedJob]:
        """Return the result of each start, in order."""
        results = []
        for index, job in enumerate(self.jobs):
            deciding = self._deciding_index(index, job)
            result = self.results_by_index[deciding]
            if deciding != index:
                debounced = is_debounced(job) and is_debounced(self.jobs[deciding])
                result = replace(result, existing=True, debounced=debounced)
            results.append(result)
        return results


def _key_row(index: int, job: NewJob) -> str:
    key = job.deduplication
    assert key is not None
    window = "null" if key.window is None else repr(key.window)
    return (
        f'{{"place":{index},"type":{quoted(job.type)},"key":{quoted(key.key)},'
        f'"only_open":{"true" if key.scope == "open" else "false"},"seconds":{window},'
        f'"excluding":{json.dumps(list(key.excluding))}}}'
    )


def _debounce_row(index: int, job: NewJob) -> str:
    key = job.deduplication
    assert key is not None
    return (
        f'{{"place":{index},"type":{quoted(job.type)},"key":{quoted(key.key)},"debounce":{key.debounce!r},'
        f'"max_delay":{"null" if key.max_delay is None else repr(key.max_delay)},'
        f'"excluding":{json.dumps(list(key.excluding))},"input":{job.input}}}'
    )
