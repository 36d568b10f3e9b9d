"""Staged rows are kept as long as their own write says, and none is lost unnoticed. No session of Spark is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from queuert.spark import sweep_staging
from queuert.spark.errors import StagingLostError
from queuert.spark.options import WriteOptions, parse_options
from queuert.spark.write.batch import JobBatchWriter
from queuert.spark.write.stream import JobStreamWriter
from queuert.state.postgres import PostgresState, bulk, bulk_commit
from queuert.state.postgres.bulk import BulkSettings, bulk_session
from tests.spark.support import numbers, query, stages

pytestmark = pytest.mark.spark

HOUR = 3600
DAY = 24 * HOUR


def given(dsn: str, **options: str) -> WriteOptions:
    return parse_options(WriteOptions, {"url": dsn, "jobType": "resize", **options})


def batch_writer(dsn: str, **options: str) -> JobBatchWriter:
    return JobBatchWriter(given(dsn, **options), StructType([StructField("n", LongType())]))


def stream_writer(dsn: str, **options: str) -> JobStreamWriter:
    return JobStreamWriter(given(dsn, **{"sinkId": "s", **options}), StructType([StructField("n", LongType())]))


def rows(*values: int) -> Iterator[Any]:
    return iter([pa.record_batch({"n": pa.array(values, pa.int64())})])


def age(dsn: str, seconds: int) -> None:
    """Make all that is staged so much older."""
    query(dsn, f"UPDATE queuert.bulk_stage SET touched_at = touched_at - interval '{seconds} seconds' RETURNING 1")
    query(dsn, f"UPDATE queuert.stream_stage SET staged_at = staged_at - interval '{seconds} seconds' RETURNING 1")


def a_shorter_write(dsn: str) -> None:
    one = batch_writer(dsn, stagingTtl="60")
    one.abort([])


def by_hand(dsn: str) -> None:
    sweep_staging(url=dsn)


def a_worker(dsn: str) -> None:
    store = PostgresState(dsn).sync_store()
    store.open()
    store.clean_staging()
    store.close()


SWEEPS = pytest.mark.parametrize("sweep", [a_shorter_write, by_hand, a_worker])


@SWEEPS
@pytest.mark.parametrize(("ttl", "old"), [("7200", HOUR), ("3153600000", 700 * DAY)])
def test_others_keep_what_a_write_has_staged_for_its_own_time(
    dsn: str, in_batch: Callable[..., None], sweep: Callable[[str], None], ttl: str, old: int
) -> None:
    in_batch(0)
    batch, stream = batch_writer(dsn, stagingTtl=ttl), stream_writer(dsn, stagingTtl=ttl)
    of_batch, of_stream = batch.write(rows(1)), stream.write(rows(2))
    age(dsn, old)
    sweep(dsn)
    batch.commit([of_batch])
    stream_writer(dsn, stagingTtl=ttl).commit([of_stream], 0)
    assert numbers(dsn) == [1, 2]


@SWEEPS
def test_whoever_sweeps_removes_what_has_been_staged_for_longer_than_its_own_time(
    dsn: str, in_batch: Callable[..., None], sweep: Callable[[str], None]
) -> None:
    in_batch(0)
    batch_writer(dsn, stagingTtl="7200").write(rows(1))
    stream_writer(dsn, stagingTtl="7200").write(rows(2))
    age(dsn, 3 * HOUR)
    sweep(dsn)
    assert (stages(dsn), query(dsn, "SELECT count(*) FROM queuert.stream_stage")) == ([], [0])


def test_a_sweep_by_hand_may_choose_another_time(dsn: str, in_batch: Callable[..., None]) -> None:
    in_batch(0)
    batch_writer(dsn).write(rows(1))
    stream_writer(dsn).write(rows(2))
    age(dsn, HOUR)
    assert sweep_staging(url=dsn, older_than=2 * HOUR) == []
    assert (len(stages(dsn)), query(dsn, "SELECT count(*) FROM queuert.stream_stage")) == (1, [1])
    assert sweep_staging(url=dsn, older_than=HOUR / 2) != []
    assert (stages(dsn), query(dsn, "SELECT count(*) FROM queuert.stream_stage")) == ([], [0])


def test_rows_that_go_after_they_were_counted_fail_the_micro_batch(
    dsn: str, in_batch: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batch(0)
    messages: list[Any] = [stream_writer(dsn).write(rows(1, 2)), stream_writer(dsn).write(rows(3))]
    unwanted = bulk_commit._drop_unwanted

    def meanwhile(*arguments: Any) -> int:
        query(dsn, "DELETE FROM queuert.stream_stage WHERE (input->>'n')::int = 2 RETURNING 1")
        return unwanted(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(bulk_commit, "_drop_unwanted", meanwhile)
        with pytest.raises(StagingLostError, match=r"^2 rows are staged, .* 3: nothing was written"):
            stream_writer(dsn).commit(messages, 0)
    assert (numbers(dsn), query(dsn, "SELECT batch FROM queuert.stream_write")) == ([], [])
    stream_writer(dsn).commit([stream_writer(dsn).write(rows(1, 2, 3))], 0)
    assert numbers(dsn) == [1, 2, 3]


def test_rows_that_start_nothing_are_not_missed(dsn: str, in_batch: Callable[..., None]) -> None:
    """Some are deleted from staging before the jobs are made, others are not; those of losers are beside them."""
    fields = [StructField("id", StringType()), StructField("n", LongType())]
    schemas = [StructType(fields), StructType([*fields, StructField("deduplication_key", StringType())])]
    for number, schema in enumerate(schemas):
        in_batch(number)
        options = given(dsn, sinkId="s", onConflict="nothing")
        columns = {"id": ["a", "a", "b"], "n": [1, 2, 3 + number], "deduplication_key": ["k", "l", "m"]}
        staged = pa.record_batch({name: columns[name] for name in schema.fieldNames()})
        message, loser = (JobStreamWriter(options, schema).write(iter([staged])) for _ in range(2))
        assert message != loser
        JobStreamWriter(options, schema).commit([message], number)
    assert (numbers(dsn), query(dsn, "SELECT count(*) FROM queuert.stream_stage")) == ([1, 3], [0])


@pytest.mark.parametrize("options", [{}, {"onConflict": "nothing"}])
def test_a_staging_table_that_is_gone_fails_the_write_as_lost(dsn: str, options: dict[str, str]) -> None:
    schema = StructType([StructField("id", StringType()), StructField("n", LongType())])
    one = JobBatchWriter(given(dsn, stagingTtl="60", **options), schema)
    message = one.write(iter([pa.record_batch({"id": ["a"], "n": pa.array([1], pa.int64())})]))
    age(dsn, HOUR)
    a_worker(dsn)
    with pytest.raises(StagingLostError, match=r"^0 rows are staged, .* 1: nothing was written"):
        one.commit([message])
    assert numbers(dsn) == []


def test_a_table_that_is_used_after_it_was_found_idle_is_kept(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = batch_writer(dsn)
    age(dsn, 2 * DAY)
    message: list[Any] = []
    find = bulk._idle_stages

    def meanwhile(*arguments: Any) -> list[str]:
        found = find(*arguments)
        message.append(one.write(rows(1)))
        return found

    monkeypatch.setattr(bulk, "_idle_stages", meanwhile)
    with bulk_session(BulkSettings(dsn, "queuert")) as session:
        assert bulk.sweep_staging(session) == []
    one.commit(message)
    assert numbers(dsn) == [1]
