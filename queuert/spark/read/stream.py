"""The stream reader: reads the event log in the order of transactions, up to the oldest transaction that is open.

No event can be added below that horizon, so a range of the log is the same however often it is read. That is why a
batch can be repeated after a crash, and why no event is missed, however late its transaction commits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from queuert.errors import StateUnavailableError
from queuert.spark.errors import EventsLostError
from queuert.spark.gc_tuning import spare_the_loaded
from queuert.spark.read.batch import Slice, check_dropped, copied, log_state, wait_for_standby
from queuert.spark.read.csv_arrow import CsvDecoder
from queuert.spark.read.offsets import Offset, split
from queuert.spark.read.options import StreamReadOptions
from queuert.spark.read.schemas import check_schema
from queuert.spark.read.sql import Query, any_of, stream_query
from queuert.spark.write.staging import settings_of
from queuert.state.postgres.bulk import BulkSession
from queuert.state.postgres.copy_export import export_session, fetch_plainly
from queuert.state.postgres.event_log import EventCursor, LogState, lost_events
from queuert.state.postgres.rows import Row

_RESTART = (
    "begin with a new checkpoint, which reads all that the log has, or set failOnDataLoss to false to go on at the "
    "same number, without new events below it"
)


class EventSlice(Slice):
    """The part that one task of a micro-batch reads. ``end`` is the last event of the batch, which the log must
    have."""

    def __init__(self, query: Query, log_from: int, end: Offset) -> None:
        super().__init__(query, log_from, below=end.tx + (end.seq > 0))
        self.end = end.cursor


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
        """Return where a query without a checkpoint begins."""
        with export_session(settings_of(self._options)) as session:
            session.check_schema()
            now = log_state(session)
            now.check_owner()
            end = _end_of_log(session, now)
            if self._options.starting_offsets == "latest":
                return end.as_dict()
            first = fetch_plainly(session, session.sql.read_first_event)
        start = _before(first[0], now) if first else end
        # Retention may have dropped a part of a transaction. The rest of it is skipped: from the next one on the log is
        # complete.
        whole = Offset(now.dropped + 1, 0, now.system, now.timeline)
        return min(max(start, whole), end).as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the largest size of a micro-batch."""
        most = self._options.max_rows_per_batch
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Let the query end at the present end of the log."""
        with export_session(settings_of(self._options)) as session:
            now = log_state(session)
            now.check_owner()
            self._last = _end_of_log(session, now)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next micro-batch ends; ``start`` if there is nothing to read."""
        begin = Offset.parse(start)
        with export_session(settings_of(self._options)) as session:
            now = log_state(session, begin.cursor)
            begin.check_system(now.system)
            now.check_owner()
            self._check_kept(begin, now)
            return self._end(session, begin, limit, now).as_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the present end of the log, for the query's progress; None while the database cannot be reached."""
        with suppress(StateUnavailableError), export_session(settings_of(self._options)) as session:
            return _end_of_log(session, log_state(session)).as_dict()
        return None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the parts for the tasks of a micro-batch."""
        _, schema = self._options.address()
        last = Offset.parse(end)
        first = min(self._known_empty(Offset.parse(start)), last)  # Retention may have dropped what has no events.
        return [
            EventSlice(stream_query(self._columns, schema, self._filters, _bounds(low, high)), low.tx, last)
            for low, high in split(first, last, self._options.num_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the events of one part, in order, as Arrow batches."""
        assert isinstance(partition, EventSlice)
        spare_the_loaded()
        decoder = CsvDecoder(self._columns, to_arrow_schema(self._schema, timezone="UTC"))
        with export_session(settings_of(self._options)) as session:
            assert partition.below is not None
            wait_for_standby(session, partition.below)
            yield from decoder.decode(copied(session, partition.query))
            if self._options.fail_on_data_loss:
                _check_read(session, partition)

    def _check_kept(self, begin: Offset, now: LogState) -> None:
        if not self._options.fail_on_data_loss:
            return
        lost = lost_events(begin.cursor, now)
        if lost is not None:
            raise EventsLostError(f"{lost}: {_RESTART}")
        known = self._known_empty(begin)
        if now.dropped >= known.tx:
            raise EventsLostError(
                f"retention dropped events up to transaction {now.dropped}, and the stream had read only those before "
                f"{known.tx}: keep events for longer, or set failOnDataLoss to false to continue with the others"
            )

    def _end(self, session: BulkSession, begin: Offset, limit: ReadLimit, now: LogState) -> Offset:
        end = _end_of_log(session, now)
        last = min(self._last or end, end)
        look_from = self._known_empty(begin)
        if look_from >= last or self._nth(session, look_from, last, 0, now) is None:
            # This is not the end of a batch, which would have no rows. But this part of the log need not be read again.
            self._nothing = (begin, max(look_from, last))
            # Once a day it is: retention drops what is behind, and a checkpoint that stayed there could not go on.
            return last if last > begin and _days(session, begin, last) >= 1 else begin
        if isinstance(limit, ReadMaxRows):
            return self._nth(session, look_from, last, limit.max_rows, now) or last
        return last

    def _known_empty(self, begin: Offset) -> Offset:
        """Return the position up to which it is known that no event matches."""
        return self._nothing[1] if self._nothing is not None and self._nothing[0] == begin else begin

    def _nth(self, session: BulkSession, start: Offset, end: Offset, skip: int, now: LogState) -> Offset | None:
        given = {"start_tx": str(start.tx), "start_seq": start.seq, "horizon": str(end.tx), "skip": skip}
        found = fetch_plainly(session, session.sql.read_nth_event, {**given, **any_of(self._filters)})
        return _before(found[0], now) if found else None


def _days(session: BulkSession, begin: Offset, end: Offset) -> float:
    """Return the days between the last events before two positions; from the first of the log on, if there is no event
    before ``begin``."""
    first, last = begin.cursor.happened_at, end.cursor.happened_at
    if first is None:
        first = next((row[2] for row in fetch_plainly(session, session.sql.read_first_event)), None)
    return 0.0 if first is None or last is None else (last - first) / timedelta(days=1)


def _before(row: Row, now: LogState) -> Offset:
    """Return the position before an event."""
    tx, seq, happened_at = int(row[0]), row[1], row[2]
    return Offset(tx, seq, now.system, now.timeline, EventCursor(tx, seq, happened_at, now.system, now.timeline))


def _end_of_log(session: BulkSession, now: LogState) -> Offset:
    """Return the position after the last event below the horizon.

    It is behind that event's transaction and not at the horizon: a promoted server may use the transaction numbers
    between them for other events.
    """
    found = fetch_plainly(session, session.sql.read_last_event, {"horizon": str(now.horizon)})
    if not found:
        return Offset(now.horizon, 0, now.system, now.timeline)
    last = _before(found[0], now)
    return replace(last, tx=last.tx + 1, seq=0)


def _check_read(session: BulkSession, part: EventSlice) -> None:
    """Check, after reading, that neither retention nor a failover removed events that were to be read.

    Raises:
        EventsLostError: events were removed.
    """
    now = log_state(session, part.end)
    if part.log_from is not None:
        check_dropped(now.dropped, part.log_from)
    lost = lost_events(part.end, now)
    if lost is not None:
        raise EventsLostError(f"{lost}: {_RESTART}")


def _bounds(low: Offset, high: Offset) -> dict[str, Any]:
    return {"start_tx": str(low.tx), "start_seq": low.seq, "end_tx": str(high.tx), "end_seq": high.seq}
