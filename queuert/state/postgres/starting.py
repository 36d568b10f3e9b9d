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
from queuert.state.postgres.rows import Row
from queuert.state.postgres.statements import Statements
from queuert.state.types import NewJob, StartedJob


def insertions(
    sql: Statements, statement: bytes, jobs: Sequence[NewJob], *, awaited: bool = False, before: int = 0
) -> Iterator[tuple[bytes | NamedStatement, parameters.Parameters]]:
    """Statements with their parameters, made of ``start_jobs`` or ``start_if_absent``: mostly one, and the narrow one.

    ``awaited`` says that another job will wait for their chains; ``before`` how many of the same call come earlier.
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
"""Looked up in a third of the time of a call of the enumeration."""


def started_jobs(found: Iterable[Row]) -> dict[str, StartedJob]:
    """Rows of ``start_jobs``, by id."""
    return {row[0]: StartedJob(row[0], row[1], _STATUSES[row[2]], row[3]) for row in found}


Slot = tuple[str, str]
"""Job type and deduplication key."""


def slot_of(job: NewJob) -> Slot | None:
    """What a start is deduplicated by."""
    return None if job.deduplication is None else (job.type, job.deduplication.key)


def needs_transaction(jobs: Sequence[NewJob], *, callers: bool = False) -> bool:
    """Whether starting these jobs takes more than one statement, or must not spoil the caller's transaction."""
    for job in jobs:
        if job.blockers or job.deduplication or job.attach or (callers and job.id_chosen):
            return True
    return is_large(jobs)


def reject_batch_blockers(jobs: Iterable[NewJob], written: Container[str]) -> None:
    """Refuse jobs that would wait for chains of their own batch, which did not exist when it was given.

    Raises:
        ChainNotFoundError: one does.
    """
    for job in jobs:
        for chain_id in job.blockers:
            if chain_id in written:
                raise ChainNotFoundError(chain_id)


@dataclass(slots=True)
class StartBatch:
    """A batch of starts, and what is known of each: written, or what is a duplicate of it."""

    jobs: Sequence[NewJob]
    first: dict[Slot, int] = field(default_factory=dict)
    """The first start of each key: it decides for the others of the batch."""
    found: dict[int, StartedJob] = field(default_factory=dict)
    """By place in the batch."""

    def __post_init__(self) -> None:
        for place, job in enumerate(self.jobs):
            slot = slot_of(job)
            if slot is not None:
                self.first.setdefault(slot, place)

    @property
    def slots(self) -> Parameters:
        """Parameters of ``lock_deduplication_keys``."""
        ordered = sorted(self.first)
        return {"types": [type for type, _ in ordered], "keys": [key for _, key in ordered]}

    @property
    def keys(self) -> Parameters:
        """Parameters of ``find_duplicates``."""
        return {"keys": array(_key_row(place, self.jobs[place]) for place in self.first.values())}

    def record_duplicates(self, rows: Iterable[Row]) -> None:
        """Note the rows of ``find_duplicates``."""
        for place, id, type, status, created_at, chain_status in rows:
            self.found[place] = StartedJob(
                id, type, JobStatus(status), created_at, existing=True, chain_status=ChainStatus(chain_status)
            )

    def record_existing(self, rows: Iterable[Row]) -> None:
        """Note the rows of ``find_chains_by_id`` for starts that may attach.

        Raises:
            JobIdConflictError: an id is that of a job inside a chain, or of a chain that has expired and cannot go.
            JobTypeMismatchError: a chain is of another type.
        """
        there = {row[0]: row for row in rows}
        for place, job in self._open():
            row = there.get(job.id)
            if row is None or not job.attach:
                continue
            if row[4] != 0 or row[5]:
                raise JobIdConflictError([job.id])
            chain_status = ChainStatus(row[6])
            self._attach(place, StartedJob(row[0], row[1], JobStatus(row[2]), row[3], chain_status=chain_status))

    def left(self) -> list[NewJob]:
        """The starts that are to be written, as far as is known: those that decide for themselves.

        Raises:
            JobIdConflictError: one has an id that another of the batch, which would have attached, has before it.
        """
        left: dict[str, NewJob] = {}
        for _, job in self._open():
            if job.id in left and not job.attach:
                raise JobIdConflictError([job.id])
            left.setdefault(job.id, job)
        return list(left.values())

    def written(self, started: Mapping[str, StartedJob]) -> None:
        """Note the starts that were written, by id; who has the same id as one before attaches to that.

        Raises:
            JobTypeMismatchError: it is of another type.
        """
        first: set[str] = set()
        for place, job in self._open():
            if job.id in first:
                self._attach(place, started[job.id])
            elif job.id in started:
                self.found[place] = started[job.id]
                first.add(job.id)

    def _open(self) -> list[tuple[int, NewJob]]:
        """The starts of which nothing is known, but for those that another one of their key decides for."""
        return [
            (place, job)
            for place, job in enumerate(self.jobs)
            if place not in self.found and self._deciding(place, job) == place
        ]

    def _deciding(self, place: int, job: NewJob) -> int:
        slot = slot_of(job)
        return place if slot is None else self.first[slot]

    def _attach(self, place: int, there: StartedJob) -> None:
        job = self.jobs[place]
        if there.type != job.type:
            raise JobTypeMismatchError(job.id, job.type, there.type)
        self.found[place] = replace(there, existing=True)

    def results(self) -> list[StartedJob]:
        """One for each start, in order."""
        results = []
        for place, job in enumerate(self.jobs):
            deciding = self._deciding(place, job)
            one = self.found[deciding]
            results.append(one if deciding == place else replace(one, existing=True))
        return results


def _key_row(place: int, job: NewJob) -> str:
    key = job.deduplication
    assert key is not None
    window = "null" if key.window is None else repr(key.window)
    return (
        f'{{"place":{place},"type":{quoted(job.type)},"key":{quoted(key.key)},'
        f'"only_open":{"true" if key.scope == "open" else "false"},"seconds":{window},'
        f'"excluding":{json.dumps(list(key.excluding))}}}'
    )
