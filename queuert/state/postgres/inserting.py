"""Which statements write the first jobs of new chains: a pure function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queuert.state.adapter import NewJob
from queuert.state.postgres import parameters
from queuert.state.postgres.protocol import NamedStatement
from queuert.state.postgres.registering import indexing
from queuert.state.postgres.statements import Statements


def insertions(
    sql: Statements, statement: bytes, jobs: Sequence[NewJob], *, awaited: bool = False, before: int = 0
) -> Iterator[tuple[bytes | NamedStatement, parameters.Parameters]]:
    """Statements with their parameters, made of ``start_jobs`` or ``start_missing``: mostly one, and the narrow one.

    ``awaited`` says that another job will wait for their chains; ``before`` how many of the same call come earlier.
    """
    if not jobs:
        return
    plain = parameters.plain_start(jobs, awaited=awaited, before=before) if statement is sql.start_jobs else None
    if plain is not None:
        yield (sql.named("start_plain") if len(jobs) > 1 else sql.named("start_one")), plain
        return
    if any(job.attributes for job in jobs):
        statement = indexing(sql.index_attributes, statement)
    for chunk in parameters.start_chunks(jobs, awaited=awaited, before=before):
        yield statement, chunk
