"""What the tasks of a batch read: run here, against a real Postgres, without Spark."""

from __future__ import annotations

import json
import pickle
import re
import threading
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queuert.errors import SchemaMissingError, StateUnavailableError
from queuert.spark.errors import EventsLostError, SnapshotGoneError, SparkOptionError
from queuert.spark.read.batch import Slice
from queuert.spark.read.columns import TABLES
from queuert.spark.read.snapshots import snapshot
from queuert.state.postgres import PostgresState
from queuert.state.types import NewJob
from queuert.testing.conformance.builders import ask, complete, retry
from tests.spark.read_support import add_closed, add_event, add_events, connected, read_all, read_plainly, table_reader
from tests.support.addresses import password_of

LONG_AGO = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(row["id"] for row in rows)


def set_job(dsn: str, id: str, **values: Any) -> None:
    with connected(dsn) as connection:
        changes = ", ".join(f"{name} = %({name})s" for name in values)
        connection.execute(f"UPDATE queuert.job SET {changes} WHERE id = %(id)s".encode(), {"id": id, **values})


def add_open(dsn: str, *ids: str) -> None:
    with connected(dsn) as connection:
        connection.execute(
            """INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_status, input)
               SELECT id, 'resize', id, 'resize', 'open', '{}' FROM unnest(%s::text[]) AS id""",
            (list(ids),),
        )


def test_every_column_of_every_table_is_there(dsn: str) -> None:
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        add_event(connection, "a", "started", attempt=1, started=LONG_AGO, worker="w")
        connection.execute(
            """INSERT INTO queuert.worker (started_at, seen_at, expires_at, pid, concurrency, running, id, name, host,
                                           version, state, job_types)
               VALUES (now(), now(), 'infinity', 4294967296, 4, 1, 'w', 'w', 'h', '1', 'running', ARRAY['a,b', 'ż"'])"""
        )
    for table, columns in TABLES.items():
        [row] = read_plainly(dsn, table)
        assert list(row) == [column.name for column in columns]
    [worker] = read_plainly(dsn, "workers")
    assert (worker["job_types"], worker["pid"], worker["expires_at"]) == (["a,b", 'ż"'], 2**32, None)


@pytest.mark.parametrize("options", [{}, {"consistency": "none"}, {"numPartitions": "1"}, {"numPartitions": "7"}])
def test_each_row_once(dsn: str, options: dict[str, str]) -> None:
    add_closed(dsn, 500)
    assert ids(read_plainly(dsn, "jobs", **options)) == [f"job-{n:08}" for n in range(1, 501)]
    assert ids(read_plainly(dsn, "chains", **options)) == [f"job-{n:08}" for n in range(1, 501)]


def test_ids_without_a_table_to_speak_of(dsn: str) -> None:
    assert read_plainly(dsn) == []
    add_closed(dsn, 1)
    assert len(read_plainly(dsn, numPartitions="50")) == 1


def test_values_come_as_they_are(dsn: str) -> None:
    text = 'żółw 🐢 "quoted", \\ back\r\nline\ttab \x1e \x1f'
    json_text = '{"a": "\\"q\\"\\n, \\\\ 🐢", "e": "", "n": null, "big": 12345678901234567890123, "dec": 1.50}'
    add_closed(dsn, 1)
    set_job(dsn, "job-00000001", input=json_text, output="null", deduplication_key=text, limit_key="", attributes="{}")
    [row] = read_plainly(dsn)
    assert row["input"] == json_text
    assert row["output"] == "null"
    assert row["deduplication_key"] == text
    assert row["limit_key"] == ""
    assert row["error"] is None
    assert row["trace_context"] is None


def test_long_rows_after_short_ones_do_not_all_come_at_once(dsn: str) -> None:
    add_closed(dsn, 2_000)
    with connected(dsn) as connection:
        connection.execute("UPDATE queuert.job SET input = to_jsonb(repeat('x', 100000)) WHERE id > 'job-00001900'")
    reader = table_reader(dsn, numPartitions="1")
    [part] = reader.partitions()
    batches = list(reader.read(part))
    assert sum(batch.num_rows for batch in batches) == 2_000
    assert max(batch.nbytes for batch in batches) < 6 * 2**20


def test_moments_are_utc_and_none_is_infinite(dsn: str) -> None:
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        connection.execute(b"ALTER DATABASE %s SET timezone = 'Asia/Kolkata'" % connection.info.dbname.encode())
    odd = {"scheduled_at": "infinity", "started_at": "-infinity", "chain_closed_at": "12026-01-01 00:00:00+00"}
    set_job(dsn, "job-00000001", created_at=LONG_AGO, finished_at="0044-03-15 12:00:00+00 BC", **odd)
    [row] = read_plainly(dsn)
    assert row["created_at"] == LONG_AGO
    assert (row["scheduled_at"], row["started_at"], row["finished_at"]) == (None, None, None)
    assert read_plainly(dsn, "chains")[0]["closed_at"] is None


def test_settled_is_what_can_change_no_more(dsn: str) -> None:
    add_closed(dsn, 2)
    add_open(dsn, "open")
    with connected(dsn) as connection:
        connection.execute(
            """INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_index, input) VALUES
               ('open-next', 'publish', 'open', 'resize', 1, '{}')"""
        )
        connection.execute(
            """UPDATE queuert.job
               SET status = 'continued', continued_by = 'open-next', completed_tx = pg_current_xact_id()
               WHERE id = 'open'"""
        )
    assert ids(read_plainly(dsn)) == ["job-00000001", "job-00000002"]
    assert ids(read_plainly(dsn, "chains")) == ["job-00000001", "job-00000002"]
    assert len(read_plainly(dsn, consistency="none")) == 4
    assert len(read_plainly(dsn, "chains", consistency="none")) == 3
    with connected(dsn) as connection:
        connection.execute(
            "UPDATE queuert.job SET status = 'completed', completed_tx = pg_current_xact_id() WHERE id = 'open-next'"
        )
        connection.execute(
            "UPDATE queuert.job SET chain_status = 'completed', completed_tx = pg_current_xact_id() WHERE id = 'open'"
        )
    assert ids(read_plainly(dsn)) == ["job-00000001", "job-00000002", "open", "open-next"]
    assert len(read_plainly(dsn, "chains")) == 3


def test_what_closed_before_its_transaction_was_kept_is_settled(dsn: str) -> None:
    add_closed(dsn, 1)
    set_job(dsn, "job-00000001", completed_tx=None)
    assert len(read_plainly(dsn)) == 1


def test_a_transaction_that_is_not_over_is_beyond_the_horizon_and_so_is_what_follows(dsn: str) -> None:
    add_closed(dsn, 1, prefix="before-")
    with psycopg.connect(dsn) as slow:
        slow.execute("SELECT pg_current_xact_id()")
        add_closed(dsn, 1, prefix="after-")
        reader = table_reader(dsn)
        parts = reader.partitions()
        assert ids(read_plainly(dsn)) == ["before-00000001"]
    assert ids(read_plainly(dsn)) == ["after-00000001", "before-00000001"]
    # The parts were planned before: what has settled since does not show in one of them and lack in another.
    late = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert ids(late) == ["before-00000001"]


def test_ranges_of_transactions_leave_nothing_out_and_nothing_twice(dsn: str) -> None:
    cuts = []
    for round in range(3):
        add_closed(dsn, 5, prefix=f"{round}-")
        with connected(dsn) as connection:
            row = connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
        assert row is not None
        cuts.append(row[0])
    pieces = [read_plainly(dsn, fromTx=low, toTx=high) for low, high in zip(["0", *cuts], cuts, strict=False)]
    assert [len(piece) for piece in pieces] == [5, 5, 5]
    assert ids(list(chain.from_iterable(pieces))) == ids(read_plainly(dsn))
    with pytest.raises(SparkOptionError, match="below which all transactions have ended"):
        read_plainly(dsn, toTx=str(2**40))


def test_chains_show_the_last_job(dsn: str) -> None:
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        connection.execute(
            """UPDATE queuert.job
               SET status = 'continued', continued_by = 'next', chain_status = 'failed', output = NULL"""
        )
        connection.execute(
            """INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_index, status, input, error) VALUES
               ('next', 'publish', 'job-00000001', 'resize', 1, 'failed', '{}', '{"kind": "x"}')"""
        )
    [chain] = read_plainly(dsn, "chains")
    shown = {name: chain[name] for name in ("status", "length", "tail_id", "tail_type", "output", "error", "input")}
    assert shown == {"status": "failed", "length": 2, "tail_id": "next", "tail_type": "publish", "output": None,
                     "error": '{"kind": "x"}', "input": '{"n": 1}'}  # fmt: skip


def test_failures_are_json(dsn: str) -> None:
    """Null, or an array of the attempts that failed, oldest first, also of a job that has completed."""
    store = PostgresState(dsn).sync_store()
    store.open()
    store.start_jobs([NewJob("failing", "work", "1"), NewJob("good", "work", "1")])
    store.finish([retry(one) if one.id == "failing" else complete(one) for one in store.claim(ask())])
    store.finish([complete(one) for one in store.claim(ask())])
    store.close()
    found = {row["id"]: row["failures"] for row in read_plainly(dsn, columns="id,failures")}
    assert found["good"] is None
    [failure] = json.loads(found["failing"])
    assert failure.keys() == {"attempt", "started_at", "failed_at", "worker", "error"}
    assert (failure["attempt"], failure["worker"], failure["error"]["message"]) == (1, "holder", "boom")


def test_filters(dsn: str) -> None:
    add_closed(dsn, 3)
    add_closed(dsn, 2, prefix="p-", type="publish")
    add_open(dsn, "open")
    set_job(dsn, "job-00000001", created_at=LONG_AGO, finished_at=LONG_AGO, chain_closed_at=LONG_AGO)
    set_job(dsn, "job-00000002", write_id="w'1")
    later = (LONG_AGO + timedelta(microseconds=1)).isoformat()
    exact = LONG_AGO.isoformat()
    for table in ("jobs", "chains"):
        for given, expected in [
            ({"types": "publish"}, ["p-00000001", "p-00000002"]),
            ({"types": "publish,other"}, ["p-00000001", "p-00000002"]),
            ({"writeId": "w'1"}, ["job-00000002"]),
            ({"chainIds": '["job-00000003", "none"]'}, ["job-00000003"]),
            ({"createdTo": later}, ["job-00000001"]),
            ({"createdTo": exact}, []),
            ({"createdFrom": exact, "createdTo": later}, ["job-00000001"]),
            ({"closedFrom": exact, "closedTo": later}, ["job-00000001"]),
            ({"closedFrom": later, "types": "resize"}, ["job-00000002", "job-00000003"]),
            ({"consistency": "none", "statuses": "ready" if table == "jobs" else "open"}, ["open"]),
            ({"types": ""}, []),
        ]:
            assert ids(read_plainly(dsn, table, **given)) == expected, (table, given)


def test_columns_are_those_requested_for(dsn: str) -> None:
    add_closed(dsn, 1)
    assert read_plainly(dsn, columns="status,id") == [{"status": "completed", "id": "job-00000001"}]
    assert read_plainly(dsn, columns="error") == [{"error": None}]


def test_attempts_are_paired_from_the_log(dsn: str) -> None:
    due, started = LONG_AGO, LONG_AGO + timedelta(seconds=1)
    first = {"due": due, "started": started, "worker": "w1", "attempt": 1}
    second = {**first, "worker": "w2", "attempt": 2}
    error = '{"kind": "x"}'
    with connected(dsn) as connection:
        add_event(connection, "a")
        add_event(connection, "a", "started", status="running", **{**first, "worker": "w0"})
        add_event(connection, "a", "released", status="ready", **{**first, "worker": "w0"})
        add_event(connection, "a", "started", status="running", **first)
        add_event(connection, "a", "retried", status="scheduled", error=error, **{**first, "due": started})
        add_event(connection, "b", "started", status="running", **first)
        add_event(connection, "a", "started", status="running", **second)
        add_event(connection, "a", "cancelled", status="cancelled", **{**second, "worker": None})
        add_event(connection, "c", "completed", status="completed", **first)  # of a type that logs finishes only
        add_event(connection, "d", "cancelled", status="cancelled")
        add_event(connection, "e", "started", status="running", **first)
        add_event(connection, "e", "released", status="ready", **first)
    found = read_plainly(dsn, "attempts")
    keys = ("job_id", "attempt", "worker", "due_at", "outcome", "status", "error")
    assert sorted(tuple(row[key] for key in keys) for row in found) == [
        ("a", 1, "w1", due, "retried", "scheduled", error),
        ("a", 2, "w2", due, "cancelled", "cancelled", None),
        ("b", 1, "w1", due, "running", "running", None),
        ("c", 1, "w1", due, "completed", "completed", None),
    ]
    assert {row["started_at"] for row in found} == {started}
    assert [row["job_id"] for row in found if row["ended_at"] is None] == ["b"]


def horizon(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
    assert row is not None
    return str(row[0])


def test_pieces_have_each_attempt_once_where_it_ended(dsn: str) -> None:
    """The events that began it may be of an earlier piece, and of an earlier day."""
    first = {"due": LONG_AGO, "started": LONG_AGO + timedelta(seconds=1), "worker": "w1", "attempt": 1}
    second = {**first, "attempt": 2}
    with connected(dsn) as connection:
        cuts = ["1"]
        for job in ("retried", "cancelled", "released", "late", "running"):
            add_event(connection, job, "started", status="running", **first)
        add_event(connection, "within", "started", status="running", **first)
        add_event(connection, "within", "failed", status="failed", **first)
        connection.execute("UPDATE queuert.job_event SET happened_at = %s", [LONG_AGO + timedelta(seconds=1)])
        cuts.append(horizon(connection))
        assert read_plainly(dsn, "attempts", fromTx=cuts[-1]) == []
        add_event(connection, "retried", "retried", status="scheduled", **{**first, "due": LONG_AGO + timedelta(1)})
        add_event(connection, "cancelled", "cancelled", status="cancelled", **{**first, "worker": None})
        add_event(connection, "released", "released", status="ready", **first)
        add_event(connection, "released", "started", status="running", **{**first, "worker": "w2"})
        add_event(connection, "finishes only", "retried", status="scheduled", **first)
        add_event(connection, "finishes only", "completed", status="completed", **second)
        cuts.append(horizon(connection))
        add_event(connection, "retried", "cancelled", status="cancelled", **{**first, "worker": None})
        add_event(connection, "released", "completed", status="completed", **{**first, "worker": "w2"})
        add_event(connection, "late", "completed", status="completed", **first)
        cuts.append(horizon(connection))
    pieces = [read_plainly(dsn, "attempts", fromTx=low, toTx=high) for low, high in pairwise(cuts)]
    assert [sorted((row["job_id"], row["attempt"], row["outcome"]) for row in piece) for piece in pieces] == [
        [("within", 1, "failed")],
        [
            ("cancelled", 1, "cancelled"),
            ("finishes only", 1, "retried"),
            ("finishes only", 2, "completed"),
            ("retried", 1, "retried"),
        ],
        [("late", 1, "completed"), ("released", 1, "completed")],
    ]
    ended = [row for row in read_plainly(dsn, "attempts") if row["ended_at"] is not None]
    by_job = itemgetter("job_id", "attempt")
    assert sorted(chain.from_iterable(pieces), key=by_job) == sorted(ended, key=by_job)
    assert sorted(read_plainly(dsn, "attempts", toTx=cuts[1]), key=by_job) == pieces[0]
    assert sorted(read_plainly(dsn, "attempts", fromTx=cuts[2]), key=by_job) == sorted(pieces[2], key=by_job)


def test_an_attempt_that_an_older_transaction_ended_is_in_one_piece(dsn: str) -> None:
    first = {"due": LONG_AGO, "started": LONG_AGO, "attempt": 1}
    with connected(dsn) as connection, psycopg.connect(dsn) as older, psycopg.connect(dsn) as between:
        older.execute("SELECT pg_current_xact_id()")
        between.execute("SELECT pg_current_xact_id()")
        add_event(connection, "a", "started", status="running", worker="w", **first)
        add_event(older, "a", "cancelled", status="cancelled", **first)
        older.commit()
        cut = horizon(connection)
        between.commit()
        found = [read_plainly(dsn, "attempts", toTx=cut), read_plainly(dsn, "attempts", fromTx=cut)]
    assert [[row["outcome"] for row in piece] for piece in found] == [[], ["cancelled"]]


def test_events_of_all_days(dsn: str) -> None:
    with connected(dsn) as connection:
        places = [add_event(connection, f"j{n}") for n in range(50)]
        connection.execute(
            "UPDATE queuert.job_event SET happened_at = happened_at + interval '1 day' WHERE seq / 64 % 2 = 0"
        )
        connection.execute("UPDATE queuert.job_event SET happened_at = '2020-01-01' WHERE seq / 64 % 5 = 0")
    for parts in ("1", "3", "40"):
        found = read_plainly(dsn, "events", numPartitions=parts)
        assert sorted((row["tx"], row["seq"]) for row in found) == places
    assert len(read_plainly(dsn, "events", happenedTo="2020-01-02T00:00:00Z")) == 10
    assert len(read_plainly(dsn, "events", happenedFrom="2020-01-02T00:00:00Z", kinds="created")) == 40
    assert read_plainly(dsn, "events", kinds="started") == []


def test_events_that_share_a_row(dsn: str) -> None:
    due, started = datetime(2026, 3, 1, 8, tzinfo=UTC), datetime(2026, 3, 1, 9, tzinfo=UTC)
    names = [f"j{n}" for n in range(20)]
    with connected(dsn) as connection:
        for kind, status in (("started", "running"), ("completed", "completed")):
            add_events(connection, names, kind, status=status, attempt=1, due=due, started=started, worker="w1")
        add_events(connection, ["second", "third"], "started", chains=["one", "two"], status="running", attempt=2)
        add_event(connection, "alone")
    for parts in ("1", "40"):
        found = read_plainly(dsn, "events", numPartitions=parts)
        found.sort(key=lambda row: (row["tx"], row["seq"]))
        assert [row["job_id"] for row in found] == [*names, *names, "second", "third", "alone"]
        assert [row["chain_id"] for row in found] == [*names, *names, "one", "two", "alone"]
        assert len({row["seq"] for row in found}) == len(found)
    attempts = read_plainly(dsn, "attempts", types="resize", chainIds="j3,j7")
    assert sorted((row["job_id"], row["due_at"], row["started_at"], row["outcome"]) for row in attempts) == [
        ("j3", due, started, "completed"),
        ("j7", due, started, "completed"),
    ]
    assert [row["job_id"] for row in read_plainly(dsn, "events", chainIds="two")] == ["third"]


def test_events_that_retention_took_meanwhile(dsn: str) -> None:
    with connected(dsn) as connection:
        add_event(connection, "a")
        reader = table_reader(dsn, "events")
        parts = reader.partitions()
        assert len(read_all(reader)) == 1
        connection.execute(
            """WITH gone AS (DELETE FROM queuert.job_event RETURNING tx)
               UPDATE queuert.event_log SET dropped_tx = (SELECT tx FROM gone)"""
        )
    with pytest.raises(EventsLostError, match="retention dropped events up to"):
        [list(reader.read(part)) for part in parts]
    assert read_plainly(dsn, "events") == []
    with pytest.raises(EventsLostError, match="fromTx"):
        read_plainly(dsn, "events", fromTx="1")


def test_a_day_that_retention_dropped_since_the_snapshot(dsn: str) -> None:
    with connected(dsn) as connection:
        add_event(connection, "a")
        with snapshot(dsn) as name:
            assert [row["job_id"] for row in read_plainly(dsn, "events", snapshot=name)] == ["a"]
            days = connection.execute("SELECT DISTINCT tableoid::regclass::text FROM queuert.job_event").fetchall()
            connection.execute("UPDATE queuert.event_log SET dropped_tx = (SELECT tx FROM queuert.job_event)")
            for (day,) in days:
                connection.execute(f"DROP TABLE {day}".encode())
            for table in ("events", "attempts"):
                with pytest.raises(EventsLostError, match="retention dropped"):
                    read_plainly(dsn, table, snapshot=name)


def test_jobs_stay_where_they_are_while_a_snapshot_is_open(dsn: str) -> None:
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        connection.execute("SET lock_timeout = '100ms'")
        with snapshot(dsn), pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("VACUUM FULL queuert.job")
        connection.execute("VACUUM FULL queuert.job")


def test_parts_on_one_snapshot_are_exact_under_load(dsn: str) -> None:
    count = 4_000
    add_closed(dsn, count)
    stop, busy = threading.Event(), threading.Event()

    def update() -> None:
        with connected(dsn) as connection:
            # Every update writes rows anew somewhere else in the table: ranges of blocks see some twice, and miss some.
            while not stop.is_set():
                connection.execute("UPDATE queuert.job SET priority = priority + 1, error = '{}' WHERE attempt = 1")
                busy.set()

    writer = threading.Thread(target=update)
    writer.start()
    try:
        assert busy.wait(60)
        with snapshot(dsn) as name:
            reader = table_reader(dsn, snapshot=name)
            parts = reader.partitions()
            found, seen = [], set()
            for part in parts:
                busy.clear()
                rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
                found += ids(rows)
                seen |= {row["priority"] for row in rows}
                assert busy.wait(60)
    finally:
        stop.set()
        writer.join()
    assert len(parts) == 4
    assert sorted(found) == [f"job-{n:08}" for n in range(1, count + 1)]
    assert len(seen) == 1


def test_the_end_of_a_snapshot(dsn: str) -> None:
    add_closed(dsn, 1)
    with snapshot(dsn) as name:
        add_closed(dsn, 1, prefix="later-")
        assert ids(read_plainly(dsn, snapshot=name)) == ["job-00000001"]
        assert ids(read_plainly(dsn, "chains", snapshot=name)) == ["job-00000001"]
    with pytest.raises(SnapshotGoneError, match="must be open, and of this database"):
        read_plainly(dsn, snapshot=name)


def test_a_reader_can_be_sent_to_tasks_and_tells_no_password(dsn: str) -> None:
    add_closed(dsn, 1)
    reader = pickle.loads(pickle.dumps(table_reader(dsn)))
    assert len(read_all(reader)) == 1
    secret = table_reader("postgresql://me:hunter2@127.0.0.1:1/none")
    assert "hunter2" not in repr(secret.options) + repr(vars(secret))
    with pytest.raises(StateUnavailableError) as refused:
        secret.partitions()
    assert "hunter2" not in str(refused.value)


def test_reading_stops_where_it_is_left(dsn: str) -> None:
    add_closed(dsn, 20_000)
    reader = table_reader(dsn, numPartitions="1")
    batches = reader.read(reader.partitions()[0])
    assert next(batches).num_rows < 20_000
    batches.close()  # type: ignore[attr-defined]
    with connected(dsn) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY%'"
        while connection.execute(query).fetchone() != (0,):
            pass


def test_no_transaction_waits_for_a_reader_that_has_all_rows(dsn: str) -> None:
    """The server ends a transaction that is idle for ten seconds, and a task may take longer for its last rows."""
    add_closed(dsn, 10)
    reader = table_reader(dsn, numPartitions="1")
    batches = reader.read(reader.partitions()[0])
    assert next(batches).num_rows == 10
    with connected(dsn) as connection:
        query = (
            "SELECT state FROM pg_stat_activity WHERE datname = current_database() AND state <> 'active'"
            " AND query LIKE 'COPY%'"
        )
        while (row := connection.execute(query).fetchone()) is None:
            pass
    assert row == ("idle",)
    assert list(batches) == []


def test_a_role_that_may_only_read(dsn: str) -> None:
    add_closed(dsn, 1)
    with connected(dsn) as connection:
        name = f"reader_{connection.info.dbname}"
        connection.execute(
            f'CREATE ROLE "{name}" LOGIN PASSWORD {password_of(dsn).as_string(None)}; '
            f'GRANT USAGE ON SCHEMA queuert TO "{name}"; '
            f'GRANT SELECT ON ALL TABLES IN SCHEMA queuert TO "{name}"'.encode()
        )
        # As for the roles that migrations make: the log may be read, and its parts only by way of it.
        for (part,) in connection.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'queuert.job_event'::regclass"
        ).fetchall():
            connection.execute(f'REVOKE ALL ON {part} FROM "{name}"'.encode())
        try:
            own = make_conninfo(dsn, user=name)
            assert [len(read_plainly(own, table)) for table in TABLES] == [1, 1, 0, 0, 0]
        finally:
            connection.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"'.encode())


def test_a_part_of_the_log_opens_no_other(dsn: str) -> None:
    """A read of one block does not look into thirty days."""
    with connected(dsn) as connection:
        add_event(connection, "a")
        parts = table_reader(dsn, "events", numPartitions="100").partitions()
        plans = []
        for part in parts:
            assert isinstance(part, Slice)
            cursor = psycopg.ClientCursor(connection)
            plan = cursor.execute(f"EXPLAIN {part.query.text}".encode(), part.query.parameters).fetchall()
            plans.append("\n".join(line for (line,) in plan))
    opened = [re.findall(r" on (job_event\w*)", plan) for plan in plans]
    assert all(len(one) == 1 for one in opened), plans
    assert len({one[0] for one in opened}) == len(parts) > 2


def test_a_database_without_a_schema(bare_dsn: str) -> None:
    with pytest.raises(SchemaMissingError, match="queuert migrate up"):
        read_plainly(bare_dsn)
