"""The batch reader. The set of rows is fixed when the DataFrame is made, and each task reads one part of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from queuert.errors import StateUnavailableError
from queuert.spark.errors import EventsLostError, SnapshotGoneError, SparkOptionError
from queuert.spark.gc_tuning import spare_the_loaded
from queuert.spark.read.csv_arrow import DELIMITER, QUOTE, CsvDecoder
from queuert.spark.read.options import ReadOptions
from queuert.spark.read.schemas import check_schema
from queuert.spark.read.sql import (
    Day,
    Part,
    Query,
    attempt_queries,
    block_ranges,
    event_queries,
    id_ranges,
    job_queries,
    worker_queries,
)
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.bulk import BulkSession
from queuert.state.postgres.copy_export import (
    SnapshotReleased,
    TableDropped,
    copy_out,
    export_session,
    fetch_on,
    fetch_plainly,
)
from queuert.state.postgres.event_log import EventCursor, LogState, log_params

CATCH_UP = 30.0
"""Seconds for which a task waits for a standby that lags behind the server on which the read was planned."""

_LOOK = 0.2

SAMPLED_BLOCKS = 300
"""The number of blocks of a table that are sampled for the ids that divide it into parts."""


class Slice(InputPartition):
    """The part that one task reads.

    Args:
        query: the statement and the values of its parameters.
        log_from: the query needs all events from this transaction on; None if it does not read the event log.
        below: the query needs all transactions below this one; None if it reads what there is.
    """

    def __init__(self, query: Query, log_from: int | None = None, *, below: int | None = None) -> None:
        super().__init__(None)
        self.query = query
        self.log_from = log_from
        self.below = below


def log_state(session: BulkSession, cursor: EventCursor | None = None, *, snapshot: str | None = None) -> LogState:
    """Return the state of the log, now or on a snapshot, and whether it has the event of a cursor."""
    return LogState.of(fetch_on(session, snapshot, session.sql.read_log, log_params(cursor))[0])


def wait_for_standby(session: BulkSession, below: int) -> None:
    """Wait until a standby has all transactions below this one: the read was planned on a server that had them.

    Raises:
        StateUnavailableError: the standby is too far behind. Spark runs the task again; the address should name one
            server, or the primary.
    """
    until = time.monotonic() + CATCH_UP
    while (now := log_state(session)).standby and now.horizon < below:
        if time.monotonic() >= until:
            raise StateUnavailableError(
                f"this standby must have all transactions below {below}, as the server has on which the read was "
                f"planned, and has those below {now.horizon} after {CATCH_UP:g} s: read from the primary, or from one "
                "standby alone"
            )
        time.sleep(_LOOK)


class TableReader(DataSourceReader):
    """Reads one table.

    Args:
        options: see :class:`~queuert.spark.read.options.ReadOptions`.
        schema: the schema of the read, which may have only some of the columns.

    Raises:
        SparkOptionError: the schema has a column that the table does not have, or another type.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self._schema = schema
        self._columns = options.selected(schema.fieldNames())
        check_schema(self._columns, schema)

    def partitions(self) -> list[InputPartition]:
        """Return the parts for the tasks. Spark calls it once for a DataFrame, however often that is used."""
        with export_session(settings_of(self.options)) as session:
            session.check_schema()
            with _snapshot_errors():
                # A day that retention has dropped since the snapshot is missed by `check_log`.
                now = log_state(session, snapshot=self.options.snapshot)
                options = self._bounded(now)
                queries = self._queries(session, options)
        below = options.to_tx if options.settled else None
        if options.table not in ("events", "attempts"):
            return [Slice(query, below=below) for query in queries]
        return [Slice(query, max(now.dropped + 1, options.from_tx or 0), below=below) for query in queries]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one part as Arrow batches."""
        assert isinstance(partition, Slice)
        spare_the_loaded()
        decoder = CsvDecoder(self._columns, to_arrow_schema(self._schema, timezone="UTC"))
        with export_session(settings_of(self.options)) as session:
            if partition.below is not None:
                wait_for_standby(session, partition.below)
            yield from decoder.decode(copied(session, partition.query, self.options.snapshot))
            if partition.log_from is not None:
                check_log(session, partition.log_from)

    def _bounded(self, now: LogState) -> ReadOptions:
        options = self.options
        if not options.settled:
            return options
        now.check_owner()
        if options.to_tx is not None and options.to_tx > now.horizon:
            raise SparkOptionError(
                f"toTx must be at most {now.horizon}, below which all transactions have ended, got {options.to_tx}"
            )
        if options.from_tx is not None and options.from_tx > now.next_tx and not now.standby:
            raise SparkOptionError(
                f"fromTx must be at most {now.next_tx}, the next transaction, got {options.from_tx}: it was read from "
                "another server, or before a failover that lost transactions; read again from an earlier one"
            )
        if options.from_tx is not None and options.table in ("events", "attempts") and options.from_tx <= now.dropped:
            raise EventsLostError(f"fromTx must be above {now.dropped}, up to which retention has dropped events")
        return options if options.to_tx is not None else options.model_copy(update={"to_tx": now.horizon})

    def _queries(self, session: BulkSession, options: ReadOptions) -> list[Query]:
        schema = session.settings.schema
        if options.table == "workers":
            return worker_queries(self._columns, schema)
        if options.table == "attempts":
            only_ended = self.options.from_tx is not None or self.options.to_tx is not None
            return attempt_queries(options, self._columns, schema, only_ended=only_ended)
        if options.table == "events":
            days = [Day(*row) for row in fetch_on(session, options.snapshot, session.sql.read_days)]
            return event_queries(options, self._columns, schema, days)
        return job_queries(options, self._columns, schema, _job_parts(session, options))


def _job_parts(session: BulkSession, options: ReadOptions) -> list[Part]:
    if options.num_partitions == 1:
        return [Part()]
    blocks = int(fetch_plainly(session, session.sql.read_blocks)[0][0])
    if options.snapshot is not None:
        return block_ranges(blocks, options.num_partitions)
    shares = [at / options.num_partitions for at in range(1, options.num_partitions)]
    percent = 100.0 if blocks <= SAMPLED_BLOCKS else 100.0 * SAMPLED_BLOCKS / blocks
    given = {"shares": shares, "percent": percent}
    bounds = fetch_plainly(session, session.sql.read_id_bounds, given)[0][0]
    return id_ranges([bound for bound in bounds or [] if bound is not None])


def copied(session: BulkSession, query: Query, snapshot: str | None = None) -> Iterator[memoryview]:
    """Yield the rows of a query as text for :class:`~queuert.spark.read.csv_arrow.CsvDecoder`.

    Raises:
        SnapshotGoneError: the transaction of the snapshot has ended.
        EventsLostError: a partition of the event log was dropped.
    """
    with _snapshot_errors():
        yield from copy_out(session, query.text, query.parameters, delimiter=DELIMITER, quote=QUOTE, snapshot=snapshot)


@contextmanager
def _snapshot_errors() -> Iterator[None]:
    """Raise errors of a snapshot, and of tables that were dropped, as the errors that users know."""
    try:
        yield
    except SnapshotReleased:
        raise SnapshotGoneError(
            "the snapshot must be open, and of this database: read inside the block of snapshot()"
        ) from None
    except TableDropped as error:
        raise EventsLostError(f"retention dropped a part of the event log while it was read ({error})") from None


def check_log(session: BulkSession, log_from: int) -> None:
    """Check, after reading, that retention dropped none of the events that were to be read.

    Raises:
        EventsLostError: it dropped some.
    """
    check_dropped(log_state(session).dropped, log_from)


def check_dropped(dropped: int, log_from: int) -> None:
    """Check that retention dropped no events from a transaction on.

    Raises:
        EventsLostError: it dropped some.
    """
    if dropped >= log_from:
        raise EventsLostError(f"retention dropped events up to transaction {dropped} before or while they were read")
