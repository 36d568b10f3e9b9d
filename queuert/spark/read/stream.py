"""The stream reader: the event log in the order of transactions, and never further than those that are all over.

Below the horizon nothing can come in any more, so a range of the log is the same however often it is read. That is why
a batch can be repeated after a crash, and why no event is passed over, however late its transaction commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from queuert.errors import StateUnavailableError
from queuert.spark.errors import EventsLostError
from queuert.spark.processes import spare_the_loaded
from queuert.spark.read.batch import Horizon, Slice, check_log, copied, horizon
from queuert.spark.read.csv_arrow import CsvDecoder
from queuert.spark.read.offsets import Offset, split
from queuert.spark.read.options import StreamReadOptions
from queuert.spark.read.schemas import check_schema
from queuert.spark.read.sql import any_of, stream_query
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.bulk import BulkSession
from queuert.state.postgres.exporting import export_session, fetch_plainly


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the event log in micro-batches. Options are in :class:`~queuert.spark.read.options.StreamReadOptions`."""

    def __init__(self, options: StreamReadOptions, schema: StructType) -> None:
        self._options = options
        self._columns = options.selected(schema.fieldNames())
        check_schema(self._columns, schema)
        self._schema = schema
        self._filters = {"type": options.types, "status": options.statuses, "kind": options.kinds}
        self._last: Offset | None = None
        self._nothing: tuple[Offset, Offset] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query begins that has no checkpoint."""
        with export_session(settings_of(self._options)) as session:
            session.check_schema()
            now = horizon(session)
            end = Offset(now.tx, 0, now.system)
            if self._options.starting_offsets == "latest":
                return end.as_dict()
            first = fetch_plainly(session, session.sql.read_first_event)
        start = Offset(int(first[0][0]), first[0][1], now.system) if first else end
        # Of transactions that retention has taken a part of, what is left is not read: from there on the log is whole.
        whole = Offset(now.dropped + 1, 0, now.system)
        return min(max(start, whole), end).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How much a micro-batch may have."""
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query is to end where the log ends now."""
        with export_session(settings_of(self._options)) as session:
            now = horizon(session)
        self._last = Offset(now.tx, 0, now.system)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next micro-batch ends; ``start`` again while there is nothing to read."""
        begin = Offset.parse(start)
        with export_session(settings_of(self._options)) as session:
            now = horizon(session)
            begin.check_system(now.system)
            self._check_kept(begin, now)
            return self._end(session, begin, limit, now).as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the log ends now, for the query's progress; None while the database cannot be reached."""
        with suppress(StateUnavailableError), export_session(settings_of(self._options)) as session:
            now = horizon(session)
            return Offset(now.tx, 0, now.system).as_dict()
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What each task of a micro-batch reads."""
        _, schema = self._options.address()
        return [
            Slice(stream_query(self._columns, schema, self._filters, _bounds(low, high)), low.tx)
            for low, high in split(Offset.parse(start), Offset.parse(end), self._options.num_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The events of one part, in their order, as batches of Arrow."""
        assert isinstance(partition, Slice)
        spare_the_loaded()
        decoder = CsvDecoder(self._columns, to_arrow_schema(self._schema, timezone="UTC"))
        with export_session(settings_of(self._options)) as session:
            yield from decoder.decode(copied(session, partition.query))
            if self._options.fail_on_data_loss and partition.log_from is not None:
                check_log(session, partition.log_from)

    def _check_kept(self, begin: Offset, now: Horizon) -> None:
        if self._options.fail_on_data_loss and now.dropped >= begin.tx:
            raise EventsLostError(
                f"retention took events up to transaction {now.dropped}, and the stream had read those before "
                f"{begin.tx} only: keep the log for longer, or set failOnDataLoss to false to go on with what is left"
            )

    def _end(self, session: BulkSession, begin: Offset, limit: ReadLimit, now: Horizon) -> Offset:
        last = min(self._last or Offset(now.tx, 0, now.system), Offset(now.tx, 0, now.system))
        look_from = self._known_empty(begin)
        if look_from >= last or self._nth(session, look_from, last, 0) is None:
            # Not an end: the batch would have no rows. But it need not be looked through again.
            self._nothing = (begin, max(look_from, last))
            return begin
        if isinstance(limit, ReadMaxRows):
            return self._nth(session, look_from, last, limit.max_rows) or last
        return last

    def _known_empty(self, begin: Offset) -> Offset:
        """Up to where nothing that fits is known to come after a place."""
        return self._nothing[1] if self._nothing is not None and self._nothing[0] == begin else begin

    def _nth(self, session: BulkSession, start: Offset, end: Offset, skip: int) -> Offset | None:
        given = {"start_tx": str(start.tx), "start_seq": start.seq, "horizon": str(end.tx), "skip": skip}
        found = fetch_plainly(session, session.sql.read_nth_event, {**given, **any_of(self._filters)})
        return Offset(int(found[0][0]), found[0][1], start.system) if found else None


def _bounds(low: Offset, high: Offset) -> dict[str, Any]:
    return {"start_tx": str(low.tx), "start_seq": low.seq, "end_tx": str(high.tx), "end_seq": high.seq}
