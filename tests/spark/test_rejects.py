"""Rejected rows: the directory holds those of the write that counts, once, whoever else tried, failed or was killed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from queuert import migrations
from queuert.errors import JobIdConflictError, StateUnavailableError
from queuert.spark import enqueue
from queuert.spark.errors import SparkColumnError, SparkOptionError, StagingLostError, WriteConflictError
from queuert.spark.options import WriteOptions, parse_options
from queuert.spark.write import batch as batch_module
from queuert.spark.write.batch import JobBatchWriter
from queuert.spark.write.rejects import RejectFile
from queuert.spark.write.stream import JobStreamWriter
from queuert.state.postgres.bulk_commit import commit_batch, commit_write
from tests.spark.support import numbers, query, stages, wait_for_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from queuert.testing.databases import TemplateDatabases

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

SCHEMA = StructType([StructField("id", StringType()), StructField("n", LongType())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The directory of rejects; nobody has made it yet."""
    return tmp_path / "rejects"


def options(dsn: str, path: object, **others: str) -> WriteOptions:
    return parse_options(WriteOptions, {"url": dsn, "jobType": "resize", "rejects": str(path), **others})


def writer(dsn: str, path: object, **others: str) -> JobBatchWriter:
    return JobBatchWriter(options(dsn, path, **{"writeId": "w", **others}), SCHEMA)


def rows(good: int = 1, bad: int = 2) -> Iterator[Any]:
    """A row that is a job, and one that is none."""
    return iter([pa.record_batch({"id": [f"job {good}", ""], "n": pa.array([good, bad], pa.int64())})])


def rejected(path: Path) -> list[int]:
    """The numbers of rejected rows in all files that a reader of the directory sees."""
    files = [one for one in path.glob("*.parquet") if not one.name.startswith(("_", "."))] if path.exists() else []
    return sorted(n for one in files for n in pq.read_table(one).column("n").to_pylist())


def everything(path: Path) -> int:
    """How many files there are, those among them that no reader sees."""
    return len(list(path.iterdir())) if path.exists() else 0


# --- two drivers with one write id ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_driver_that_fails_leaves_the_files_of_the_other_one(dsn: str, path: Path, order: str) -> None:
    one, two = writer(dsn, path), writer(dsn, path)
    first, second = one.write(rows()), two.write(rows())
    if order == "before":
        two.abort([second])
        assert rejected(path) == [2]
    one.commit([first])
    assert rejected(path) == [2]
    if order == "after":
        two.abort([second])
    assert (rejected(path), everything(path), numbers(dsn), stages(dsn)) == ([2], 1, [1], [])
    writer(dsn, path).commit([])
    assert rejected(path) == [2]


def test_of_two_drivers_that_commit_the_files_of_the_first_stay(dsn: str, path: Path) -> None:
    one, two = writer(dsn, path), writer(dsn, path)
    first, second = one.write(rows()), two.write(rows())
    two.commit([second])
    one.commit([first])
    assert (rejected(path), everything(path), numbers(dsn)) == ([2], 1, [1])


def test_a_task_that_ends_after_the_commit_takes_its_file_away(dsn: str, path: Path) -> None:
    one, two = writer(dsn, path), writer(dsn, path)
    message = one.write(rows())

    def late() -> Iterator[Any]:
        yield from rows()
        one.commit([message])

    late_message = two.write(late())
    assert (rejected(path), everything(path)) == ([2], 1)
    two.commit([late_message])
    assert (rejected(path), everything(path)) == ([2], 1)


def test_a_task_that_ends_after_its_driver_gave_up_takes_its_file_away(dsn: str, path: Path) -> None:
    one = writer(dsn, path)

    def late() -> Iterator[Any]:
        yield from iter([pa.record_batch({"id": ["", ""], "n": pa.array([1, 2], pa.int64())})])
        one.abort([None])

    with pytest.raises(StagingLostError):
        one.write(late())
    assert everything(path) == 0


def test_a_file_that_is_seen_only_after_its_driver_looked_for_it_is_taken_away(
    dsn: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(dsn, path)
    finish = RejectFile.finish

    def late(file: RejectFile) -> None:
        monkeypatch.setattr(batch_module, "remove_others", lambda *_: None)  # it sees nothing yet
        one.abort([None])
        finish(file)

    monkeypatch.setattr(RejectFile, "finish", late)
    with pytest.raises(StagingLostError):
        one.write(rows())
    assert everything(path) == 0


# --- retried tasks, speculation, kills --------------------------------------------------------------------------------


def test_a_task_that_fails_takes_its_file_away(dsn: str, path: Path) -> None:
    one = writer(dsn, path)

    def failing() -> Iterator[Any]:
        yield from rows()
        raise RuntimeError("a row that cannot be computed")

    with pytest.raises(RuntimeError):
        one.write(failing())
    assert everything(path) == 0
    one.commit([one.write(rows())])
    assert rejected(path) == [2]


def test_a_file_that_is_not_finished_is_none_that_readers_see(dsn: str, path: Path) -> None:
    one = writer(dsn, path)

    def looking() -> Iterator[Any]:
        yield from rows()
        assert (rejected(path), everything(path)) == ([], 1)

    one.commit([one.write(looking())])
    assert rejected(path) == [2]


def test_what_speculative_twins_and_dead_drivers_wrote_goes_with_the_commit(dsn: str, path: Path) -> None:
    writer(dsn, path).write(rows())  # the driver is killed
    one = writer(dsn, path)
    twins: list[Any] = [one.write(rows()) for _ in range(2)]
    unfinished = next(path.iterdir())
    (path / f"_{unfinished.name}").write_bytes(b"PAR1")  # of a task that was killed
    one.commit(twins[1:])
    assert (rejected(path), everything(path)) == ([2], 1)


def test_a_repeat_takes_away_what_a_killed_driver_could_not(
    dsn: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(dsn, path)
    twins: list[Any] = [one.write(rows()) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "drop_stage", killed)
        with pytest.raises(KeyboardInterrupt):
            one.commit(twins[:1])
    assert rejected(path) == [2, 2]
    again = writer(dsn, path)
    again.commit([again.write(rows())])
    assert (rejected(path), everything(path), numbers(dsn)) == ([2], 1, [1])


def test_a_write_under_a_forgotten_id_takes_the_place_of_the_older_rows(dsn: str, path: Path) -> None:
    for number in (2, 3):
        one = writer(dsn, path)
        one.commit([one.write(rows(number, number))])
        query(dsn, "DELETE FROM queuert.bulk_write RETURNING 1")
    assert (rejected(path), everything(path)) == ([3], 1)


def killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_failed_write_leaves_no_file_and_a_repeat_writes_them(dsn: str, path: Path) -> None:
    enough = writer(dsn, "fail", writeId="other")
    good = pa.record_batch({"id": ["job 1"], "n": pa.array([7], pa.int64())})
    enough.commit([enough.write(iter([good]))])
    one = writer(dsn, path)
    message = one.write(rows())
    with pytest.raises(JobIdConflictError):
        one.commit([message])
    one.abort([message])
    assert everything(path) == 0
    again = writer(dsn, path, onConflict="nothing")
    again.commit([again.write(rows())])
    assert rejected(path) == [2]


def test_in_doubt_whether_it_was_committed_nothing_is_taken_away(
    dsn: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = writer(dsn, path)
    message = one.write(rows())
    with monkeypatch.context() as patch:
        commit = commit_write

        def lost(*arguments: Any, **others: Any) -> Any:
            commit(*arguments, **others)
            raise StateUnavailableError("the connection is lost")

        patch.setattr(batch_module, "commit_write", lost)
        with pytest.raises(StateUnavailableError):
            one.commit([message])
    one.abort([message])  # as Spark does then
    assert (rejected(path), numbers(dsn)) == ([2], [1])


def test_a_driver_that_cannot_look_takes_nothing_away(
    dsn: str, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = writer(dsn, path)
    message = one.write(rows())

    def unreachable(*_: Any, **__: Any) -> Any:
        raise StateUnavailableError("the server is gone")

    with monkeypatch.context() as patch:
        patch.setattr(batch_module, "bulk_session", unreachable)
        one.abort([message])
    assert rejected(path) == [2]
    assert [(record.name, record.levelno) for record in caplog.records] == [("queuert.spark", logging.WARNING)] * 2
    assert "rejects" in caplog.text


# --- others in the same directory -------------------------------------------------------------------------------------


def test_writes_of_other_databases_and_schemas_keep_their_files(
    dsn: str, path: Path, template_databases: TemplateDatabases
) -> None:
    migrations.upgrade(dsn, schema="another")
    with template_databases.database() as other:
        for number, (where, chosen) in enumerate([(dsn, {}), (other, {}), (dsn, {"schema": "another"})]):
            one = writer(where, path, **chosen)
            one.commit([one.write(rows(bad=number))])
            one.abort([])
        assert rejected(path) == [0, 1, 2]


def test_other_writes_and_files_of_others_are_left_alone(dsn: str, path: Path, in_batch: Any) -> None:
    path.mkdir()
    (path / "rejects-of-mine.parquet").write_bytes(b"")
    (path / "_SUCCESS").write_bytes(b"")
    for number, id in enumerate(["s:0", "s", "w"]):
        one = writer(dsn, path, writeId=id)
        one.commit([one.write(rows(number, 10 + number))])
    for sink, batch in (("s", 0), ("s", 1), ("s:0", 0)):
        in_batch(batch)
        stream(dsn, path, sinkId=sink).commit([stream(dsn, path, sinkId=sink).write(rows(20 + batch, 20))], batch)
        stream(dsn, path, sinkId="none").abort([None], 0)
        query(dsn, "DELETE FROM queuert.job RETURNING 1")
    (path / "rejects-of-mine.parquet").unlink()
    assert rejected(path) == [10, 11, 12, 20, 20, 20]
    assert everything(path) == 7


# --- streams ----------------------------------------------------------------------------------------------------------


def stream(dsn: str, path: object, **others: str) -> JobStreamWriter:
    return JobStreamWriter(options(dsn, path, **{"sinkId": "s", **others}), SCHEMA)


def test_a_micro_batch_that_comes_again_rejects_nothing_twice(dsn: str, path: Path, in_batch: Any) -> None:
    in_batch(0)
    message, loser = (stream(dsn, path).write(rows()) for _ in range(2))
    assert message != loser
    stream(dsn, path).commit([message], 0)
    assert rejected(path) == [2]
    again = stream(dsn, path).write(rows())
    stream(dsn, path).commit([again], 0)
    assert (rejected(path), everything(path), numbers(dsn)) == ([2], 1, [1])
    in_batch(1)
    stream(dsn, path).commit([stream(dsn, path).write(rows(3, 4))], 1)
    assert rejected(path) == [2, 4]


def test_a_repeated_micro_batch_takes_away_what_a_killed_one_could_not(
    dsn: str, path: Path, in_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batch(0)
    stream(dsn, path).write(rows())  # a driver that is killed
    twins: list[Any] = [stream(dsn, path).write(rows()) for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr("queuert.spark.write.stream.remove_others", killed)
        with pytest.raises(KeyboardInterrupt):
            stream(dsn, path).commit(twins[:1], 0)
    assert rejected(path) == [2, 2, 2]
    # The program is another one now, which rejects no row; those of the commit that counts stay.
    good = pa.record_batch({"id": ["job 1"], "n": pa.array([1], pa.int64())})
    stream(dsn, path).commit([stream(dsn, path).write(iter([good]))], 0)
    assert (rejected(path), everything(path), numbers(dsn)) == ([2], 1, [1])


def test_a_micro_batch_whose_commit_answer_was_lost_keeps_its_files(
    dsn: str, path: Path, in_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batch(0)
    message = stream(dsn, path).write(rows())
    stream(dsn, path).commit([message], 0)
    stream(dsn, path).commit([message], 0)  # as it is done again when the connection broke
    stream(dsn, path).abort([message], 0)
    assert (rejected(path), numbers(dsn)) == ([2], [1])


def only_bad(n: int = 2) -> Iterator[Any]:
    return iter([pa.record_batch({"id": [""], "n": pa.array([n], pa.int64())})])


COMMIT_UNDER_WAY = """
    INSERT INTO queuert.stream_write (sink, query, batch, rows, rejected, reject_files) VALUES ('s', 'q', 0, 0, 1, %s)
"""


def test_an_abort_waits_for_a_commit_whose_answer_was_lost(dsn: str, path: Path, in_batch: Any) -> None:
    """No staged row is locked by the commit of a micro-batch whose rows were all rejected."""
    in_batch(0)
    message: Any = stream(dsn, path).write(only_bad())
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(dsn) as connection:
            connection.execute(COMMIT_UNDER_WAY, [[message.reject_file]])
            aborted = pool.submit(stream(dsn, path).abort, [message], 0)
            while not blocked_by(dsn, connection) and wait([aborted], timeout=0.02).not_done:
                pass
        aborted.result()
    assert rejected(path) == [2]


def blocked_by(dsn: str, connection: psycopg.Connection[Any]) -> list[int]:
    of_this = "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    return query(dsn, of_this, connection.info.backend_pid)


def test_an_abort_that_cannot_wait_for_the_commit_takes_nothing_away(
    dsn: str, path: Path, in_batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    in_batch(0)
    message: Any = stream(dsn, path).write(only_bad())
    with psycopg.connect(dsn) as connection:
        connection.execute(COMMIT_UNDER_WAY, [[message.reject_file]])
        stream(dsn, path, lockTimeout="0.05").abort([message], 0)
    assert rejected(path) == [2]
    assert "not known whether the micro-batch was committed" in caplog.text


def test_an_abort_after_a_later_micro_batch_takes_nothing_away(dsn: str, path: Path, in_batch: Any) -> None:
    """The row of the sink no longer has the files of the earlier one, which count if only its answer was lost."""
    messages: list[Any] = []
    for number in range(2):
        in_batch(number)
        messages.append(stream(dsn, path).write(rows(number, 10 + number)))
        stream(dsn, path).commit(messages[-1:], number)
    stream(dsn, path).abort(messages[:1], 0)
    assert rejected(path) == [10, 11]


def test_a_commit_that_is_repeated_after_a_later_micro_batch_takes_nothing_away(
    dsn: str, path: Path, in_batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_batch(0)
    message: Any = stream(dsn, path).write(rows(0, 10))
    in_batch(1)
    later: Any = stream(dsn, path).write(rows(1, 11))
    lost = iter([True])

    def answer_is_lost(*arguments: Any, **others: Any) -> Any:
        result = commit_batch(*arguments, **others)
        if next(lost, False):
            stream(dsn, path).commit([later], 1)  # by another driver of the query
            raise StateUnavailableError("the connection is lost") from psycopg.OperationalError()
        return result

    monkeypatch.setattr("queuert.spark.write.stream.commit_batch", answer_is_lost)
    stream(dsn, path).commit([message], 0)
    assert (rejected(path), numbers(dsn)) == ([10, 11], [0, 1])


def test_a_late_micro_batch_that_is_offered_once_takes_its_own_files_away(dsn: str, path: Path, in_batch: Any) -> None:
    for number in range(2):
        in_batch(number)
        stream(dsn, path).commit([stream(dsn, path).write(rows(number, 10 + number))], number)
    in_batch(0)
    stream(dsn, path).commit([stream(dsn, path).write(rows(0, 10))], 0)
    assert rejected(path) == [10, 11]


BY_THE_VERSION_BEFORE = """
    INSERT INTO queuert.stream_write AS known (sink, query, batch, rows) VALUES ('s', 'q', %s, 1)
    ON CONFLICT (sink) DO UPDATE
    SET batch = excluded.batch, rows = excluded.rows, committed_at = clock_timestamp()
    WHERE known.query = excluded.query AND known.batch < excluded.batch
    RETURNING batch
"""
"""How a micro-batch was taken when the row of its sink said nothing of files."""


@pytest.mark.parametrize("earlier", [[], [2]])
def test_files_that_the_version_before_left_stay(dsn: str, path: Path, in_batch: Any, earlier: list[int]) -> None:
    """It notes none, and leaves those of an earlier micro-batch noted: they say nothing of its own."""
    if earlier:
        in_batch(0)
        stream(dsn, path).commit([stream(dsn, path).write(rows())], 0)
    in_batch(1)
    messages: list[Any] = [stream(dsn, path).write(rows(3, 4)) for _ in range(3)]
    counting, late, again = messages
    assert query(dsn, BY_THE_VERSION_BEFORE, 1) == [1]
    stream(dsn, path).commit([again], 1)
    stream(dsn, path).abort([late], 1)
    assert (path / counting.reject_file).exists()
    assert (rejected(path), everything(path)) == ([*earlier, 4], len(earlier) + 1)


def test_the_row_of_a_sink_tells_of_its_last_micro_batch_alone(dsn: str, path: Path, in_batch: Any) -> None:
    good = pa.record_batch({"id": ["job 3"], "n": pa.array([3], pa.int64())})
    for number, (batch, bad) in enumerate([(next(rows()), 1), (good, 0)]):
        in_batch(number)
        message: Any = stream(dsn, path).write(iter([batch]))
        stream(dsn, path).commit([message], number)
        files = [message.reject_file] * bad
        assert query(dsn, "SELECT rejected, reject_files FROM queuert.stream_write") == [(bad, files)]
    assert query(dsn, "SELECT write_id FROM queuert.bulk_write") == []


def test_a_failed_micro_batch_leaves_no_file(dsn: str, path: Path, in_batch: Any) -> None:
    in_batch(0)
    message = stream(dsn, path).write(rows())
    assert rejected(path) == [2]
    stream(dsn, path).abort([message, None], 0)
    assert everything(path) == 0
    stream(dsn, path).commit([stream(dsn, path).write(rows())], 0)
    assert rejected(path) == [2]


def test_another_query_of_the_sinks_name_takes_nothing_away(dsn: str, path: Path, in_batch: Any) -> None:
    in_batch(5)
    stream(dsn, path).commit([stream(dsn, path).write(rows())], 5)
    in_batch(5, "impostor")
    message = stream(dsn, path).write(rows(3, 4))
    with pytest.raises(WriteConflictError):
        stream(dsn, path).commit([message], 5)
    stream(dsn, path).abort([message], 5)
    assert (rejected(path), everything(path)) == ([2], 1)


# --- the order of the rows that are left ------------------------------------------------------------------------------

KEYED = StructType([*SCHEMA.fields, StructField("deduplication_key", StringType())])


def keyed(*rows: tuple[str, int, str | None]) -> Iterator[Any]:
    names = ("id", "n", "deduplication_key")
    types = (pa.string(), pa.int64(), pa.string())
    columns = zip(names, zip(*rows, strict=True), types, strict=True)
    return iter([pa.record_batch({name: pa.array(values, type) for name, values, type in columns})])


def write_parts(dsn: str, path: object, *parts: Iterator[Any], **others: str) -> None:
    """Write rows with keys, in partitions whose tasks end in the order of the partitions."""
    one = JobBatchWriter(options(dsn, path, writeId="w", **others), KEYED)
    messages: list[Any] = [one.write(rows) for rows in parts]
    for number, message in enumerate(messages):
        message.partition = number
    one.commit(messages)


@pytest.mark.parametrize("before", [1, 5])
@pytest.mark.parametrize("keys", [(None, None), ("a", "b")])
def test_the_first_row_of_an_id_counts_after_rejected_rows(
    dsn: str, path: Path, before: int, keys: tuple[str | None, str | None]
) -> None:
    """With one rejected row before it, it had the place of the second row; with more, a place after it."""
    first = keyed(*[("", 0, None)] * before, ("x", 1, keys[0]))
    write_parts(dsn, path, first, keyed(("x", 2, keys[1])), onConflict="nothing")
    assert (numbers(dsn), rejected(path)) == ([1], [0] * before)


def test_the_first_row_of_a_key_counts_after_rejected_rows(dsn: str, path: Path) -> None:
    write_parts(dsn, path, keyed(*[("", 0, None)] * 5, ("x", 1, "key")), keyed(("y", 2, "key")))
    assert numbers(dsn) == [1]


def test_jobs_are_dated_in_the_order_of_the_rows_that_are_left(dsn: str, path: Path) -> None:
    """A microsecond apart: a rejected row takes none, so that no time lies in the future."""
    bad = [("", 0, None)] * 5
    write_parts(
        dsn, path, keyed(*bad, ("a", 1, None), *bad, ("b", 2, None)), keyed(("c", 3, None), *bad, ("d", 4, None))
    )
    dated = query(dsn, "SELECT id FROM queuert.job ORDER BY created_at")
    apart = query(dsn, "SELECT extract(microseconds FROM max(created_at) - min(created_at))::int FROM queuert.job")
    assert (dated, apart) == (["a", "b", "c", "d"], [3])


# --- locations --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["rel/p", "FAIL", "nosuch://x", "s3://", "/"])
def test_a_location_that_cannot_be_one_is_refused_before_anything_is_staged(dsn: str, place: str) -> None:
    with pytest.raises(SparkOptionError, match="rejects must be"):
        writer(dsn, place)
    with pytest.raises(SparkOptionError, match="rejects must be"):
        stream(dsn, place)
    assert stages(dsn) == []


def test_a_file_in_the_place_of_the_directory_is_refused(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SparkOptionError, match=r"rejects must be .*file"):
        writer(dsn, tmp_path / "file")
    one = writer(dsn, tmp_path / "file" / "within")
    with pytest.raises(SparkOptionError, match="rejects must be"):
        one.write(rows())
    one.abort([None])
    assert stages(dsn) == []


def test_a_column_called_as_the_reason_is_refused_where_the_reason_goes(dsn: str, path: Path) -> None:
    schema = StructType([StructField("Rejected_Because", StringType())])
    for kind in (JobBatchWriter, JobStreamWriter):
        with pytest.raises(SparkColumnError, match="Rejected_Because"):
            kind(options(dsn, path), schema)
    assert stages(dsn) == []
    JobBatchWriter(options(dsn, "fail"), schema)


@pytest.mark.parametrize("of_stream", [False, True])
def test_files_that_cannot_be_removed_are_a_warning_and_no_failed_write(
    dsn: str, path: Path, in_batch: Any, of_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    in_batch(0)
    one: Any = stream(dsn, path) if of_stream else writer(dsn, path)
    twins = [one.write(rows()) for _ in range(2)]
    loser = path / twins[1].reject_file
    loser.unlink()
    loser.mkdir()  # what is no file cannot be removed as one
    one.commit(twins[:1], *[0] * of_stream)
    assert (numbers(dsn), stages(dsn)) == ([1], [])
    assert {(record.name, record.levelno) for record in caplog.records} == {("queuert.spark", logging.WARNING)}
    assert loser.name in caplog.text


def test_a_directory_that_went_away_fails_nothing(dsn: str, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = writer(dsn, path)
    message = one.write(iter([pa.record_batch({"id": ["a"], "n": pa.array([1], pa.int64())})]))
    path.write_text("")
    one.commit([message])
    assert (numbers(dsn), stages(dsn)) == ([1], [])


# --- in Spark ---------------------------------------------------------------------------------------------------------


def test_a_second_driver_that_fails_leaves_the_first_ones_rows(spark: SparkSession, dsn: str, path: Path) -> None:
    def late(numbers: Iterable[int]) -> Iterator[tuple[str, int]]:
        yield "a", 1
        yield "", 2
        wait_for_query(dsn, "SELECT 1 FROM queuert.bulk_write")
        raise RuntimeError("the node is lost")

    failed: list[BaseException] = []
    failing = spark.createDataFrame(spark.sparkContext.parallelize([0], 1).mapPartitions(late), "id string, n long")

    def second() -> None:
        try:
            enqueue(failing, "resize", url=dsn, write_id="w", rejects=str(path))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=second)
    thread.start()
    wait_for_query(dsn, "SELECT 1 FROM queuert.bulk_stage")
    good = spark.createDataFrame([("a", 1), ("", 2)], "id string, n long").coalesce(1)
    assert enqueue(good, "resize", url=dsn, write_id="w", rejects=str(path)).rejected == 1
    thread.join()
    assert "the node is lost" in str(failed[0])
    assert enqueue(good, "resize", url=dsn, write_id="w", rejects=str(path)).rejected == 1
    assert [row.n for row in spark.read.parquet(str(path)).collect()] == [2]


def test_a_bad_location_is_reported_by_enqueue(spark: SparkSession, dsn: str) -> None:
    df = spark.createDataFrame([("a", 1)], "id string, n long")
    with pytest.raises(SparkOptionError, match="rejects must be"):
        enqueue(df, "resize", url=dsn, rejects="rel/p")
    assert (numbers(dsn), stages(dsn)) == ([], [])
