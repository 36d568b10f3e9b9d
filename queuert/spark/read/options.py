"""The options of reads. They replace Spark's own pushdown of filters, which is wrong in some plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobStatus
from queuert.spark.options import ConnectionOptions, option_name
from queuert.spark.read.columns import Column, chosen_columns
from queuert.texts import text_reason

MOST_PARTITIONS = 1_000
_LONGEST_WRITE_ID = 256 + len(f":{2**63 - 1}")
"""The length of the write id of a micro-batch: the name of the sink, and the number of the batch."""


def _names(value: Any) -> Any:
    """Parse a list: a JSON array, or names separated by commas."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("must be a JSON array of strings, or names separated by commas") from None
    return [name.strip() for name in value.split(",") if name.strip()]


def _moment(value: Any) -> Any:
    # Pydantic would take a number for seconds since 1970.
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return value
        raise ValueError("must be a time in ISO 8601, such as 2026-01-31T12:00:00Z")
    return value


def _aware(value: datetime) -> datetime:
    # A time without an offset would mean another time on each machine.
    if value.tzinfo is None:
        raise ValueError("must be a time with an offset: add Z, or +01:00")
    return value


def _storable(value: str) -> str:
    reason = text_reason(value)
    if reason is not None:
        raise ValueError(f"must be text that can be stored, got text with {reason}")
    return value


def _check_known(what: str, given: Sequence[str] | None, known: type[StrEnum]) -> None:
    unknown = [name for name in given or () if name not in set(known)]
    if unknown:
        raise ValueError(f"{what} must be among {', '.join(known)}, got {', '.join(map(repr, unknown))}")


Names = Annotated[
    tuple[Annotated[str, Field(max_length=4_096), AfterValidator(_storable)], ...], BeforeValidator(_names)
]
Moment = Annotated[datetime, BeforeValidator(_moment), AfterValidator(_aware)]
TransactionId = Annotated[int, Field(ge=0, lt=2**63)]

_FILTERS = {
    "jobs": ("types", "statuses", "created_from", "created_to", "closed_from", "closed_to", "write_id", "chain_ids"),
    "chains": ("types", "statuses", "created_from", "created_to", "closed_from", "closed_to", "write_id", "chain_ids"),
    "attempts": ("types", "started_from", "started_to", "write_id", "chain_ids"),
    "events": ("types", "statuses", "kinds", "happened_from", "happened_to", "write_id", "chain_ids"),
    "workers": (),
}
_ALL_FILTERS = tuple(dict.fromkeys(name for names in _FILTERS.values() for name in names))


class ReadOptions(ConnectionOptions):
    """Options of ``spark.read``."""

    table: Literal["jobs", "chains", "attempts", "events", "workers"] = "jobs"
    """The table to read."""
    columns: Names | None = None
    """The columns to read, in this order; all by default. Spark reads those that it does not use as well."""
    types: Names | None = None
    """Only these job types; of chains, the type of the first job."""
    statuses: Names | None = None
    """Only these statuses; of events, the status of the job after the event."""
    kinds: Names | None = None
    """Only events of these kinds."""
    created_from: Moment | None = None
    """Only rows that were created at this time or later."""
    created_to: Moment | None = None
    """Only rows that were created before this time."""
    closed_from: Moment | None = None
    """Only jobs that finished, or chains that closed, at this time or later."""
    closed_to: Moment | None = None
    """Only jobs that finished, or chains that closed, before this time."""
    started_from: Moment | None = None
    """Only attempts that began at this time or later."""
    started_to: Moment | None = None
    """Only attempts that began before this time."""
    happened_from: Moment | None = None
    """Only events at this time or later."""
    happened_to: Moment | None = None
    """Only events before this time."""
    write_id: Annotated[str, Field(max_length=_LONGEST_WRITE_ID), AfterValidator(_storable)] | None = None
    """Only the chains that this bulk write started, and their jobs, attempts and events."""
    chain_ids: Names | None = None
    """Only these chains, and their jobs, attempts and events."""
    num_partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)] = 4
    """The number of parts of the read."""
    snapshot: Annotated[str, Field(pattern=r"^[0-9A-Fa-f]+(-[0-9A-Fa-f]+)*$")] | None = None
    """The name of an open snapshot (:func:`queuert.spark.snapshot`): all parts see the database at the same time."""
    consistency: Literal["settled", "none"] | None = None
    """Without a snapshot: ``settled`` reads only rows that cannot change any more, ``none`` whatever each part
    finds."""
    from_tx: TransactionId | None = None
    """With ``settled``: only rows of this transaction or later ones; of attempts, those that ended then."""
    to_tx: TransactionId | None = None
    """With ``settled``: only rows of transactions before this one, which must have ended; by default all that have."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        meant = _FILTERS[self.table]
        wrong = [name for name in _ALL_FILTERS if getattr(self, name) is not None and name not in meant]
        if wrong:
            raise ValueError(f"{self.table} cannot be filtered by {', '.join(map(option_name, wrong))}")
        if self.snapshot is not None and self.consistency is not None:
            raise ValueError("only one of snapshot and consistency may be set")
        if not self.settled and (self.from_tx is not None or self.to_tx is not None):
            raise ValueError("fromTx and toTx may be set only with consistency settled")
        _check_known("statuses", self.statuses, ChainStatus if self.table == "chains" else JobStatus)
        _check_known("kinds", self.kinds, EventKind)
        self.selected()
        return self

    @property
    def settled(self) -> bool:
        """Whether only rows are read that cannot change any more."""
        return self.snapshot is None and self.consistency != "none" and self.table != "workers"

    def selected(self, names: Sequence[str] | None = None) -> tuple[Column, ...]:
        """Return the columns to read: those named, or those of the option."""
        return chosen_columns(self.table, self.columns if names is None else names)


class StreamReadOptions(ConnectionOptions):
    """Options of ``spark.readStream``, which reads the event log."""

    table: Literal["events"]
    """Must be ``events``, the only table that can be read as a stream, so that Spark knows its columns."""
    columns: Names | None = None
    """The columns to read, in this order; all by default."""
    types: Names | None = None
    """Only these job types."""
    statuses: Names | None = None
    """Only events after which the job was in one of these statuses."""
    kinds: Names | None = None
    """Only these kinds of events."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """The position at which a query without a checkpoint begins."""
    max_rows_per_batch: Annotated[int, Field(ge=1)] | None = None
    """The largest number of events of a micro-batch; no limit by default."""
    num_partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)] = 1
    """The number of parts of a micro-batch."""
    fail_on_data_loss: bool = True
    """Fail the query if retention dropped events that it had not read; otherwise continue with the remaining ones."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_known("statuses", self.statuses, JobStatus)
        _check_known("kinds", self.kinds, EventKind)
        self.selected()
        return self

    def selected(self, names: Sequence[str] | None = None) -> tuple[Column, ...]:
        """Return the columns to read: those named, or those of the option."""
        return chosen_columns(self.table, self.columns if names is None else names)
