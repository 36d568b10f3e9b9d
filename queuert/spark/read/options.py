"""The options of reading. They are duplicates of filters: what Spark would push down by itself is not right in all
plans."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from queuert._json_validation import text_reason
from queuert.event_log import EventKind
from queuert.jobs import ChainStatus, JobStatus
from queuert.spark.options import ConnectionOptions, option_name
from queuert.spark.read.columns import Column, chosen_columns

MOST_PARTITIONS = 1_000
_LONGEST_WRITE_ID = 256 + len(f":{2**63 - 1}")
"""That of a stream's micro-batch: the name of the sink, and the number of the batch."""


def _names(value: Any) -> Any:
    """A list from an option's text: a JSON array, or names with commas between them."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            raise ValueError("a JSON array of strings, or names with commas between them") from None
    return [name.strip() for name in value.split(",") if name.strip()]


def _moment(value: Any) -> Any:
    # Numbers would be taken for seconds since 1970.
    if isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return value
        raise ValueError("a moment as ISO 8601 has it, such as 2026-01-31T12:00:00Z")
    return value


def _aware(value: datetime) -> datetime:
    # A moment without an offset would be another one on each machine.
    if value.tzinfo is None:
        raise ValueError("the moment has no offset: end it with Z, or +01:00")
    return value


def _storable(value: str) -> str:
    reason = text_reason(value)
    if reason is not None:
        raise ValueError(f"nothing is called so: it holds {reason}")
    return value


def _check_known(what: str, given: Sequence[str] | None, known: type[StrEnum]) -> None:
    unknown = [name for name in given or () if name not in set(known)]
    if unknown:
        raise ValueError(f"{what}: there is no {', '.join(map(repr, unknown))}; there are {', '.join(known)}")


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
    """What is read."""
    columns: Names | None = None
    """The columns to read, in this order; all by default. Spark reads those that it does not use as well."""
    types: Names | None = None
    """Only of these job types; of chains, that of the first job."""
    statuses: Names | None = None
    """Only those in these statuses; of events, those after which the job was in them."""
    kinds: Names | None = None
    """Only events of these kinds."""
    created_from: Moment | None = None
    """Only what was made at this moment or later."""
    created_to: Moment | None = None
    """Only what was made before this moment."""
    closed_from: Moment | None = None
    """Only jobs that finished, or chains that closed, at this moment or later."""
    closed_to: Moment | None = None
    """Only jobs that finished, or chains that closed, before this moment."""
    started_from: Moment | None = None
    """Only attempts that began at this moment or later."""
    started_to: Moment | None = None
    """Only attempts that began before this moment."""
    happened_from: Moment | None = None
    """Only events of this moment or later."""
    happened_to: Moment | None = None
    """Only events before this moment."""
    write_id: Annotated[str, Field(max_length=_LONGEST_WRITE_ID), AfterValidator(_storable)] | None = None
    """Only the chains that this bulk write started, and what belongs to them."""
    chain_ids: Names | None = None
    """Only these chains, and what belongs to them."""
    num_partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)] = 4
    """Into how many parts the read is cut."""
    snapshot: Annotated[str, Field(pattern=r"^[0-9A-Fa-f]+(-[0-9A-Fa-f]+)*$")] | None = None
    """A snapshot that is held meanwhile (:func:`queuert.spark.snapshot`): all parts see the database at one moment."""
    consistency: Literal["settled", "none"] | None = None
    """Without a snapshot: ``settled`` reads what can change no more, ``none`` whatever each part finds."""
    from_tx: TransactionId | None = None
    """Of what is settled, only that of this transaction or later ones."""
    to_tx: TransactionId | None = None
    """Of what is settled, only that of transactions before this one, which must be over; by default all that are."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        meant = _FILTERS[self.table]
        wrong = [name for name in _ALL_FILTERS if getattr(self, name) is not None and name not in meant]
        if wrong:
            raise ValueError(f"{self.table} cannot be filtered by {', '.join(map(option_name, wrong))}")
        if self.snapshot is not None and self.consistency is not None:
            raise ValueError("snapshot and consistency are given: one of them")
        if not self.settled and (self.from_tx is not None or self.to_tx is not None):
            raise ValueError("fromTx and toTx are for what is settled")
        _check_known("statuses", self.statuses, ChainStatus if self.table == "chains" else JobStatus)
        _check_known("kinds", self.kinds, EventKind)
        self.selected()
        return self

    @property
    def settled(self) -> bool:
        """Whether only that is read which can change no more."""
        return self.snapshot is None and self.consistency != "none" and self.table != "workers"

    def selected(self, names: Sequence[str] | None = None) -> tuple[Column, ...]:
        """The columns that are read: those given, or those of the option."""
        return chosen_columns(self.table, self.columns if names is None else names)


class StreamReadOptions(ConnectionOptions):
    """Options of ``spark.readStream``, which reads the event log."""

    table: Literal["events"]
    """``events``: nothing else is a stream. To be given, so that the columns are known to be those of events."""
    columns: Names | None = None
    """The columns to read, in this order; all by default."""
    types: Names | None = None
    """Only of these job types."""
    statuses: Names | None = None
    """Only those after which the job was in these statuses."""
    kinds: Names | None = None
    """Only of these kinds."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where a query without a checkpoint begins."""
    max_rows_per_batch: Annotated[int, Field(ge=1)] | None = None
    """How many events a micro-batch may have; no limit by default."""
    num_partitions: Annotated[int, Field(ge=1, le=MOST_PARTITIONS)] = 1
    """Into how many parts a micro-batch is cut."""
    fail_on_data_loss: bool = True
    """Fail the query when retention took events that it had not read; otherwise it goes on with those that are left."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        _check_known("statuses", self.statuses, JobStatus)
        _check_known("kinds", self.kinds, EventKind)
        self.selected()
        return self

    def selected(self, names: Sequence[str] | None = None) -> tuple[Column, ...]:
        """The columns that are read: those given, or those of the option."""
        return chosen_columns(self.table, self.columns if names is None else names)
