"""The columns of the tables: their names, their types, and their SQL expressions. This module does not need Spark.

All values are read as the text of COPY. JSON stays text, so that no digit of a number is lost; times are the bytes that
the server stores, which :mod:`queuert.spark.read.timestamps` decodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from queuert.spark.errors import SparkOptionError


class Kind(Enum):
    """The types of columns."""

    TEXT = "text"
    JSON = "json"
    INT = "int"
    LONG = "long"
    MOMENT = "moment"
    TEXTS = "texts"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its name, its type, and the expression that computes it."""

    name: str
    kind: Kind
    expression: str

    @property
    def sql(self) -> str:
        """The expression in a form that is decoded without loss."""
        shape = _SHAPES.get(self.kind)
        return self.expression if shape is None else f"{shape}({self.expression})"


_SHAPES = {Kind.MOMENT: "timestamptz_send", Kind.TEXTS: "to_json"}
"""Functions for types whose own text would be slow or ambiguous; their result is read instead."""


_INITIALS = {"s": Kind.TEXT, "j": Kind.JSON, "i": Kind.INT, "l": Kind.LONG, "t": Kind.MOMENT, "a": Kind.TEXTS}


def _columns(owner: str, text: str) -> tuple[Column, ...]:
    """Return columns from ``kind name`` or ``kind name=expression``; a plain name is a column of the owner."""
    columns = []
    for line in text.strip().splitlines():
        kind, _, rest = line.strip().partition(" ")
        name, _, expression = rest.partition("=")
        columns.append(Column(name, _INITIALS[kind], expression or f"{owner}.{name}"))
    return tuple(columns)


JOBS = _columns(
    "job",
    """
    s id
    s chain_id
    i chain_index
    s type
    s chain_type
    s status
    i priority
    i attempt
    i lease_expirations
    t created_at
    t scheduled_at
    t started_at
    t finished_at
    t lease_expires_at
    s worker=job.holder
    j input
    j output
    j error
    j failures
    s continued_by
    i blocker_count
    i open_blockers
    s deduplication_key
    s limit_key
    i max_attempts
    j attributes
    s write_id
    s trace_context
    l completed_tx
    """,
)

CHAINS = _columns(
    "job",
    """
    s id
    s type
    s status=job.chain_status
    t created_at
    t closed_at=job.chain_closed_at
    t expires_at
    i length=coalesce(tail.chain_index, 0) + 1
    s tail_id=coalesce(tail.id, job.id)
    s tail_type=coalesce(tail.type, job.type)
    j input
    j output=CASE WHEN tail.id IS NULL THEN job.output ELSE tail.output END
    j error=CASE WHEN tail.id IS NULL THEN job.error ELSE tail.error END
    s deduplication_key
    j attributes
    s write_id
    l completed_tx
    """,
)

ATTEMPTS = _columns(
    "attempt",
    """
    s job_id
    i attempt
    s chain_id
    i chain_index
    s type
    s chain_type
    s worker
    t due_at
    t started_at
    t ended_at
    s outcome
    s status
    j error
    """,
)

EVENTS = _columns(
    "event",
    """
    l tx
    l seq
    t happened_at
    s kind
    s status
    s job_id
    i attempt
    s chain_id
    i chain_index
    s type
    s chain_type
    t scheduled_at
    t started_at
    s worker
    j error
    """,
)

WORKERS = _columns(
    "worker",
    """
    s id
    s name
    s host
    l pid
    s version
    s state
    a job_types
    i concurrency
    i running
    t started_at
    t seen_at
    t expires_at
    """,
)

TABLES: Mapping[str, tuple[Column, ...]] = {
    "jobs": JOBS,
    "chains": CHAINS,
    "attempts": ATTEMPTS,
    "events": EVENTS,
    "workers": WORKERS,
}
"""All tables, and their columns in order."""


def chosen_columns(table: str, names: Sequence[str] | None) -> tuple[Column, ...]:
    """Return the columns of a table by name, in the given order; None for all.

    Raises:
        SparkOptionError: there is no such column, or one is named twice.
    """
    known = {column.name: column for column in TABLES[table]}
    if names is None:
        return TABLES[table]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SparkOptionError(
            f"columns must be among {', '.join(known)} for {table}, got {', '.join(map(repr, unknown))}"
        )
    if len(set(names)) < len(names) or not names:
        raise SparkOptionError("columns must name at least one column, and each only once")
    return tuple(known[name] for name in names)
