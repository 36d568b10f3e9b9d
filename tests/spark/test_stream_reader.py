"""Micro-batches of the event log: planned and read here, against a real Postgres, without Spark."""

from __future__ import annotations

import random
import threading
from itertools import chain
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from queuert.spark.errors import EventsLostError, OffsetError, SparkOptionError
from queuert.spark.read.stream import EventStreamReader
from queuert.state.postgres import PostgresState
from tests.spark.read_support import add_event, add_events, connected, read_range, stream_reader

ALL = ReadAllAvailable()


def drained(reader: EventStreamReader, start: dict[str, Any], limit: ReadLimit = ALL) -> list[list[str]]:
    """The jobs of all micro-batches from a place on, to where nothing is left."""
    batches = []
    while (end := reader.latestOffset(start, limit)) != start:
        batches.append([row["job_id"] for row in read_range(reader, start, end)])
        start = end
    return batches


def test_from_the_earliest_and_from_the_latest(dsn: str) -> None:
    earliest, latest = stream_reader(dsn), stream_reader(dsn, startingOffsets="latest")
    with connected(dsn) as connection:
        begin = earliest.initialOffset()
        add_event(connection, "a")
        first, last = earliest.initialOffset(), latest.initialOffset()
        add_event(connection, "b")
    assert drained(earliest, begin) == drained(earliest, first) == [["a", "b"]]
    assert drained(latest, last) == [["b"]]


def test_a_batch_has_no_more_than_it_may(dsn: str) -> None:
    reader = stream_reader(dsn, maxRowsPerBatch="3", numPartitions="4")
    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    start = reader.initialOffset()
    with psycopg.connect(dsn) as connection:
        for n in range(7):
            add_event(connection, f"a{n}")  # one transaction is cut as well
        connection.commit()
        for n in range(3):
            add_event(connection, f"b{n}")
            connection.commit()
    batches = drained(reader, start, reader.getDefaultReadLimit())
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert list(chain.from_iterable(batches)) == [*(f"a{n}" for n in range(7)), "b0", "b1", "b2"]
    assert len(drained(reader, start)) == 1


def test_a_batch_may_begin_and_end_within_a_row(dsn: str) -> None:
    reader = stream_reader(dsn, maxRowsPerBatch="3", numPartitions="4")
    start = reader.initialOffset()
    names = [f"a{n}" for n in range(7)]
    with connected(dsn) as connection:
        add_event(connection, "before")
        add_events(connection, names)
        add_events(connection, ["b0", "b1"], type="other")
        add_event(connection, "after")
    batches = drained(reader, start, reader.getDefaultReadLimit())
    assert [len(batch) for batch in batches] == [3, 3, 3, 2]
    assert list(chain.from_iterable(batches)) == ["before", *names, "b0", "b1", "after"]
    # From within one on, and of some types only.
    end = reader.latestOffset(start, ReadMaxRows(5))
    assert drained(reader, end) == [["a4", "a5", "a6", "b0", "b1", "after"]]
    assert drained(stream_reader(dsn, types="other"), end, ReadMaxRows(1)) == [["b0"], ["b1"]]


def test_transactions_come_by_their_number(dsn: str) -> None:
    """Not as texts: the tenth would be before the ninth."""
    reader = stream_reader(dsn)
    with connected(dsn) as connection:
        for tx in range(8, 12):
            _, seq = add_event(connection, f"a{tx}")
            connection.execute("UPDATE queuert.job_event SET tx = %s::text::xid8 WHERE seq = %s", (tx, seq))
    start = reader.initialOffset()
    assert start["tx"] == 8
    assert drained(reader, start, ReadMaxRows(1)) == [["a8"], ["a9"], ["a10"], ["a11"]]


def test_filters_and_columns(dsn: str) -> None:
    reader = stream_reader(dsn, types="publish", kinds="created,started", statuses="ready", columns="job_id,error,kind")
    start = reader.initialOffset()
    with connected(dsn) as connection:
        add_event(connection, "a")
        assert reader.latestOffset(start, ALL) == start  # nothing that fits: no empty batch
        add_event(connection, "b", type="publish", error='{"x": "\\n"}')
        add_event(connection, "c", "retried", type="publish")
        add_event(connection, "d", "started", status="running", type="publish")
    end = reader.latestOffset(start, ALL)
    assert read_range(reader, start, end) == [{"job_id": "b", "error": '{"x": "\\n"}', "kind": "created"}]
    assert reader.latestOffset(end, ALL) == end


def test_a_stream_without_matches_moves_on_once_a_day(dsn: str) -> None:
    """By a batch without rows: retention drops what is behind it, and a checkpoint that stayed there would be lost."""
    reader, none = stream_reader(dsn, types="publish"), stream_reader(dsn, types="none")
    start = reader.initialOffset()
    with connected(dsn) as connection:
        add_event(connection, "a", type="publish")
        connection.execute("UPDATE queuert.job_event SET happened_at = happened_at - interval '25 hours'")
        end = reader.latestOffset(start, ALL)
        assert none.latestOffset(start, ALL) == start
        add_event(connection, "b")
        assert none.latestOffset(start, ALL) != start, "begun where the log was empty"
    moved = reader.latestOffset(end, ALL)
    assert moved != end
    assert read_range(reader, end, moved) == []
    assert reader.latestOffset(moved, ALL) == moved
    with connected(dsn) as connection:
        add_event(connection, "c")
        assert reader.latestOffset(moved, ALL) == moved
        # What is known to have no matches may be dropped.
        connection.execute("UPDATE queuert.event_log SET dropped_tx = %s::text::xid8", (moved["tx"],))
        add_event(connection, "d", type="publish")
    last = reader.latestOffset(moved, ALL)
    assert [row["job_id"] for row in read_range(reader, moved, last)] == ["d"]


def test_a_transaction_that_commits_late_is_not_passed_over(dsn: str) -> None:
    reader = stream_reader(dsn)
    start = reader.initialOffset()
    with psycopg.connect(dsn) as slow:
        add_event(slow, "slow")
        with connected(dsn) as connection:
            add_event(connection, "quick")
        assert reader.latestOffset(start, ALL) == start
    assert drained(reader, start) == [["slow", "quick"]]


def test_a_batch_is_the_same_however_often_it_is_read(dsn: str) -> None:
    reader = stream_reader(dsn)
    start = reader.initialOffset()
    with psycopg.connect(dsn) as slow:
        with connected(dsn) as connection:
            add_event(connection, "first")
            add_event(slow, "slow")
            add_event(connection, "last")
        end = reader.latestOffset(start, ALL)
        before = read_range(reader, start, end)
    after = read_range(stream_reader(dsn, numPartitions="3"), start, end)
    assert [row["job_id"] for row in before] == ["first"]
    assert after == before


@pytest.mark.timeout(180)
def test_six_writers_with_long_transactions(dsn: str) -> None:
    reader = stream_reader(dsn, numPartitions="2")
    start = reader.initialOffset()
    written: list[str] = []
    lock, done = threading.Lock(), threading.Event()
    rounds, read_on = [0], threading.Condition()

    def wait_for_a_round() -> None:
        with read_on:
            now = rounds[0]
            assert read_on.wait_for(lambda: rounds[0] > now + 1, 60)

    def write(writer: int) -> None:
        chance = random.Random(writer)
        with psycopg.connect(dsn) as connection:
            for transaction in range(60):
                names = [f"{writer}-{transaction}-{n}" for n in range(chance.randint(1, 8))]
                for name in names:
                    add_event(connection, name)
                if chance.random() < 0.1:
                    wait_for_a_round()  # others begin, end and are read meanwhile
                if chance.random() < 0.1:
                    connection.rollback()
                    continue
                connection.commit()
                with lock:
                    written.extend(names)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(6)]

    def join() -> None:
        for one in writers:
            one.join()
        done.set()

    joiner = threading.Thread(target=join)
    for thread in (*writers, joiner):
        thread.start()
    found: list[str] = []
    limits: list[ReadLimit] = [ALL, ReadMaxRows(7), ReadMaxRows(40)]
    last = False
    while not last:
        last = done.is_set()  # one more look when all is written
        for limit in limits:
            end = reader.latestOffset(start, limit)
            found += [row["job_id"] for row in read_range(reader, start, end)]
            start = end
        with read_on:
            rounds[0] += 1
            read_on.notify_all()
    found += list(chain.from_iterable(drained(reader, start)))
    joiner.join()
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(written)


def test_available_now_ends_where_the_log_ended(dsn: str) -> None:
    reader = stream_reader(dsn)
    start = reader.initialOffset()
    with connected(dsn) as connection:
        add_event(connection, "a")
        add_event(connection, "b")
        reader.prepareForTriggerAvailableNow()
        add_event(connection, "later")
    assert drained(reader, start, ReadMaxRows(1)) == [["a"], ["b"]]
    assert drained(stream_reader(dsn), start) == [["a", "b", "later"]]


def test_events_that_retention_took(dsn: str) -> None:
    reader = stream_reader(dsn)
    start = reader.initialOffset()
    with connected(dsn) as connection:
        add_event(connection, "a")
        middle = reader.latestOffset(start, ALL)
        planned = reader.partitions(start, middle)
        connection.execute(
            """WITH gone AS (DELETE FROM queuert.job_event RETURNING tx)
               UPDATE queuert.event_log SET dropped_tx = (SELECT tx FROM gone)"""
        )
        add_event(connection, "b")
    with pytest.raises(EventsLostError, match="failOnDataLoss"):
        reader.latestOffset(start, ALL)
    with pytest.raises(EventsLostError, match="before or while"):
        list(reader.read(planned[0]))
    assert drained(reader, middle) == [["b"]]
    assert drained(stream_reader(dsn, failOnDataLoss="false"), start) == [["b"]]
    assert drained(reader, reader.initialOffset()) == [["b"]]


def test_a_checkpoint_of_another_cluster(dsn: str) -> None:
    reader = stream_reader(dsn)
    with pytest.raises(OffsetError, match="another cluster"):
        reader.latestOffset({**reader.initialOffset(), "system": "1"}, ALL)


def test_where_the_log_ends_is_reported(dsn: str) -> None:
    reader = stream_reader(dsn)
    with connected(dsn) as connection:
        place, _ = add_event(connection, "a")
    reported = reader.reportLatestOffset()
    assert reported is not None
    assert reported["tx"] > place
    assert stream_reader("postgresql://127.0.0.1:1/none").reportLatestOffset() is None


def test_only_events_are_a_stream(dsn: str) -> None:
    with pytest.raises(SparkOptionError, match="table"):
        stream_reader(dsn, table="jobs")


@pytest.mark.parametrize("has_day", [True, False])
def test_retention_is_noticed_whatever_it_took(dsn: str, has_day: bool) -> None:
    reader = stream_reader(dsn)
    start = reader.initialOffset()
    with connected(dsn) as connection:
        if has_day:
            connection.execute(
                """CREATE TABLE queuert.job_event_20200101 PARTITION OF queuert.job_event
                   FOR VALUES FROM ('2020-01-01 00:00:00+00') TO ('2020-01-02 00:00:00+00')"""
            )
        add_event(connection, "old")
        connection.execute("UPDATE queuert.job_event SET happened_at = '2020-01-01 12:00:00+00'")
        store = PostgresState(dsn).sync_store()
        store.open()
        done = store.maintain_event_log()
        store.close()
        assert (len(done.dropped), done.deleted) == ((1, 0) if has_day else (0, 1))
        add_event(connection, "new")
    with pytest.raises(EventsLostError):
        reader.latestOffset(start, ALL)
    assert drained(reader, reader.initialOffset()) == [["new"]]
