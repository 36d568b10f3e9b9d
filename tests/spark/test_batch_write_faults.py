"""Writes whose tasks, executors and drivers fail: what is in the queue is what is in the DataFrame, or nothing."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

import queuert.spark.write.batch as batch_module
from queuert.errors import StateUnavailableError
from queuert.spark import enqueue, sweep_staging
from queuert.spark.errors import StagingLostError
from queuert.spark.options import WriteOptions, parse_options
from queuert.spark.write.batch import JobBatchWriter
from queuert.state.postgres.bulk_commit import commit_write
from tests.spark.children import wide_rows
from tests.spark.support import numbers, query, stages, wait_for_staged_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(600)]

ROWS = 2_000
"""At eight kilobytes each, more than is staged at a time."""


def fail(dsn: str) -> None:
    wait_for_staged_rows(dsn)
    raise RuntimeError("after its rows were staged")


def die(dsn: str) -> None:
    wait_for_staged_rows(dsn)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("failing", [fail, die])
def test_a_task_that_fails_after_its_rows_were_staged_is_repeated(spark: SparkSession, dsn: str, failing: Any) -> None:
    df = wide_rows(spark, ROWS, 1, then=partial(failing, dsn))
    assert enqueue(df, "resize", url=dsn).rows == ROWS
    assert numbers(dsn) == list(range(ROWS))
    assert stages(dsn) == []


def writer(dsn: str, **options: str) -> JobBatchWriter:
    given = parse_options(WriteOptions, {"url": dsn, "jobType": "resize", **options})
    return JobBatchWriter(given, StructType([StructField("n", LongType())]))


def batch(*values: int) -> Any:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def test_a_commit_in_doubt_says_under_which_id_it_is_repeated(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has chosen none could only write all jobs again."""

    def lost(*arguments: Any, **others: Any) -> Any:
        commit_write(*arguments, **others)
        raise StateUnavailableError("the connection is lost") from psycopg.OperationalError()

    one = writer(dsn)
    messages: list[Any] = [one.write(iter([batch(1)]))]
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "commit_write", lost)
        with pytest.raises(StateUnavailableError, match="may have been committed: write again with writeId") as caught:
            one.commit(messages)
    one.abort([])
    named = re.search(r"writeId (\S+),", str(caught.value))
    assert named is not None
    again = writer(dsn, writeId=named[1])
    again.commit([again.write(iter([batch(1)]))])
    assert numbers(dsn) == [1]


def test_a_commit_that_the_server_refused_is_not_in_doubt(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **others: Any) -> Any:
        raise StateUnavailableError("deadlock detected") from psycopg.errors.DeadlockDetected()

    one = writer(dsn)
    messages: list[Any] = [one.write(iter([batch(1)]))]
    monkeypatch.setattr(batch_module, "commit_write", refused)
    with pytest.raises(StateUnavailableError, match=r"^deadlock detected$"):
        one.commit(messages)


def test_a_write_whose_result_cannot_be_read_says_that_it_was_committed() -> None:
    url = "postgresql://postgres@127.0.0.1:1/x"
    options = parse_options(WriteOptions, {"url": url, "jobType": "resize", "writeId": "mine"})
    with pytest.raises(StateUnavailableError, match=r"was committed, .* enqueue again with write_id='mine'"):
        import_module("queuert.spark.write.enqueue")._result(options)


def test_of_speculative_twins_one_counts(dsn: str) -> None:
    one = writer(dsn)
    first = one.write(iter([batch(1, 2), batch(3)]))
    assert one.write(iter([batch(1, 2), batch(3)])) != first
    one.commit([first])
    assert numbers(dsn) == [1, 2, 3]
    assert stages(dsn) == []


def test_an_attempt_whose_connection_breaks_stages_nothing_that_counts(dsn: str) -> None:
    one = writer(dsn)

    def broken() -> Iterator[Any]:
        yield batch(1, 2)
        task = "application_name = 'queuert spark task' AND datname = current_database()"
        query(dsn, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {task}")

    with pytest.raises(Exception, match=r"terminat|closed"):
        one.write(broken())
    one.commit([one.write(iter([batch(1, 2)]))])
    assert numbers(dsn) == [1, 2]


def test_a_failed_write_leaves_nothing(dsn: str) -> None:
    one = writer(dsn)
    one.write(iter([batch(1, 2)]))
    one.abort([None])
    assert (numbers(dsn), stages(dsn), query(dsn, "SELECT name FROM queuert.bulk_stage")) == ([], [], [])
    with pytest.raises(StagingLostError):
        one.write(iter([batch(1, 2)]))


def test_rows_that_are_gone_when_they_are_to_be_committed_fail_the_write(dsn: str) -> None:
    one = writer(dsn)
    message = one.write(iter([batch(1, 2)]))
    with psycopg.connect(dsn) as connection:
        connection.execute(f'TRUNCATE queuert."{stages(dsn)[0]}"'.encode())  # as after a crash of the server
    with pytest.raises(StagingLostError, match="0 rows are staged, and tasks told of 2"):
        one.commit([message])
    assert numbers(dsn) == []


def test_a_commit_whose_answer_is_lost_finds_that_it_was_done(dsn: str) -> None:
    one = writer(dsn, writeId="doubt")
    message = one.write(iter([batch(1, 2)]))
    one.commit([message])
    again = writer(dsn, writeId="doubt2")
    lost = again.write(iter([batch(3)]))
    again._write_id = "doubt"  # as if the first commit had been its own
    again.commit([lost])
    assert numbers(dsn) == [1, 2]


def test_staging_of_the_dead_is_swept_and_that_of_the_living_is_not(dsn: str) -> None:
    long_ago = "UPDATE queuert.bulk_stage SET touched_at = touched_at - interval '2 days'"
    dead, living = writer(dsn), writer(dsn)
    names = stages(dsn)
    assert sweep_staging(url=dsn) == []
    [old] = query(dsn, "SELECT min(name) FROM queuert.bulk_stage")
    query(dsn, f"{long_ago} WHERE name = '{old}' RETURNING 1")
    assert sweep_staging(url=dsn) == [old]
    assert stages(dsn) == [name for name in names if name != old]
    query(dsn, f"{long_ago} RETURNING 1")
    writer(dsn)
    assert len(stages(dsn)) == 1
    del dead, living
